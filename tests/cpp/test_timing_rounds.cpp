// Which choices a measurement runs, and for how long, by what they take.
#include "runtime/timing_rounds.h"

#include "check.h"

namespace {

using cutlass_py::TimingRounds;
using Times = std::vector<float>;

// Rounds of choices that take so long each; how often each ran, and for how many milliseconds a round runs.
struct Run {
  TimingRounds rounds;
  std::vector<int> ran;
  int of_all = 0;

  Run(const Times& us, int count, int milliseconds) : rounds(us.size(), count), ran(us.size()) {
    TimingRounds::Clock::time_point now{};
    while (rounds.left()) {
      for (size_t i = 0; i < us.size(); ++i) {
        if (rounds.runs(i)) ++ran[i], rounds.took(i, us[i]);
      }
      ++of_all;
      rounds.end(now += std::chrono::milliseconds(milliseconds));
    }
  }
};

TEST(short_calls_are_measured_behind_two_rounds) {
  const Run run({5, 24, 10}, 4, 1);
  CHECK(run.of_all == 6 && run.ran == std::vector<int>(3, 6) && run.rounds.calls() == 8);
  CHECK(run.rounds.times() == std::vector<Times>{Times(4, 5), Times(4, 24), Times(4, 10)});
}

TEST(long_calls_run_until_the_clock_has_settled) {
  for (const int each : {10, 30, 99, 100, 300}) {
    const Run run({100, 110}, 4, each);
    CHECK(run.of_all == 1 + (100 + each - 1) / each + 4);
    CHECK(run.rounds.calls() == 4 && run.rounds.times()[1] == Times(4, 110));
  }
}

TEST(a_long_measurement_ends) {
  const Run run({100000}, 9, 700);
  CHECK(run.of_all == 4 && run.rounds.times() == std::vector<Times>{Times(2, 100000)} && run.rounds.calls() == 1);
}

TEST(what_is_far_behind_in_two_rounds_runs_no_more) {
  const Run run({100, 149, 151, 1000}, 4, 20);
  CHECK(run.of_all == 10 && run.ran == (std::vector<int>{10, 10, 3, 3}));
  CHECK(run.rounds.times()[2] == Times(4, 151) && run.rounds.times()[3] == Times(4, 1000));
}

TEST(what_was_far_behind_once_goes_on) {
  TimingRounds rounds(2, 3);
  for (int round = 0; rounds.left(); ++round) {
    CHECK(rounds.runs(0) && rounds.runs(1));
    rounds.took(0, 100), rounds.took(1, round % 2 ? 400.0f : 101.0f);
    rounds.end(TimingRounds::Clock::time_point{} + std::chrono::seconds(round ? 1 : 0));
  }
  CHECK(rounds.times()[1] == (Times{101, 400, 101}));
}

TEST(what_failed_has_no_time) {
  TimingRounds rounds(3, 2);
  rounds.failed(1);
  while (rounds.left()) {
    CHECK(rounds.runs(0) && !rounds.runs(1));
    rounds.took(0, 50), rounds.took(2, 20);
    rounds.failed(2);
    rounds.end({});
    if (rounds.calls() == 8) break;  // 400 us of calls
    CHECK(rounds.calls() == 8);
  }
  CHECK(std::isinf(rounds.times()[1].at(0)) && std::isinf(rounds.times()[2].at(0)));
}

TEST(nobody_is_always_the_first) {
  TimingRounds rounds(3, 2);
  for (size_t round = 0; rounds.left(); ++round) {
    CHECK(rounds.turn(0) == round % 3 && rounds.turn(2) == (round + 2) % 3);
    for (size_t i = 0; i < 3; ++i) rounds.took(i, 5);
    rounds.end({});
  }
}

}  // namespace
