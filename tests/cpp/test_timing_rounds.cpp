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
  const Run never({10, 24, 1000}, 4, 20);
  CHECK(never.ran == std::vector<int>(3, 6));  // short calls bring no clock down
}

bool near(const Times& found, float wanted) {
  for (const float x : found) {
    if (std::abs(x - wanted) > 1e-3f * wanted) return false;
  }
  return found.size() == 3;
}

TEST(what_runs_no_more_keeps_its_distance) {
  TimingRounds rounds(3, 3);
  float slower = 1;  // the clock falls
  for (int round = 0; rounds.left(); ++round, slower *= 1.05f) {
    const Times us{100 * slower, 160 * slower, 400 * slower};
    for (size_t i = 0; i < 3; ++i) {
      if (rounds.runs(i)) rounds.took(i, us[i]);
    }
    rounds.end(TimingRounds::Clock::time_point{} + std::chrono::milliseconds(60 * round));
  }
  CHECK(!rounds.runs(1) && !rounds.runs(2));
  const std::vector<Times> found = rounds.times();
  for (size_t round = 0; round < 3; ++round) {
    CHECK(std::abs(found[1][round] / found[0][round] - 1.6f) < 1e-4f);
    CHECK(std::abs(found[2][round] / found[0][round] - 4) < 1e-4f);
  }
}

TEST(where_one_fails_all_take_part_again) {
  TimingRounds rounds(3, 3);
  for (int round = 0; rounds.left(); ++round) {
    CHECK(rounds.runs(2) == (round < 3 || round > 4));
    if (round == 4) rounds.failed(0);
    CHECK(rounds.runs(2) == (round < 3 || round > 4));  // not within a round, of which it had no part
    const Times us{100, 160, 200};
    for (size_t i = 0; i < 3; ++i) {
      if (rounds.runs(i)) rounds.took(i, us[i]);
    }
    rounds.end(TimingRounds::Clock::time_point{} + std::chrono::milliseconds(30 * round));
  }
  CHECK(near(rounds.times()[1], 160) && near(rounds.times()[2], 200) && std::isinf(rounds.times()[0][0]));
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
  for (int round = 0; rounds.left(); ++round) {
    CHECK(rounds.runs(0) && !rounds.runs(1));
    rounds.took(0, 100), rounds.took(2, 20);
    if (round == 1) rounds.failed(2);
    rounds.end(TimingRounds::Clock::time_point{} + std::chrono::seconds(round));
    CHECK(rounds.calls() == (round ? 4 : 8));  // 400 us of them, of what has not failed
  }
  CHECK(std::isinf(rounds.times()[1].at(0)) && std::isinf(rounds.times()[2].at(0)));
  CHECK(rounds.times()[0] == Times(2, 100));
}

TEST(nobody_is_always_the_first) {
  for (const float us : {5.0f, 50.0f}) {
    TimingRounds rounds(3, 2);
    for (size_t round = 0; rounds.left(); ++round) {
      CHECK(rounds.turn(0) == round % 3 && rounds.turn(2) == (round + 2) % 3);
      for (size_t i = 0; i < 3; ++i) rounds.took(i, us);
      rounds.end(TimingRounds::Clock::time_point{} + std::chrono::milliseconds(10 * round));
    }
  }
}

}  // namespace
