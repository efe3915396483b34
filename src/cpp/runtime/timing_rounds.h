// Which choices a measurement runs in each of its rounds, how many calls of each, and when it ends: by what they took.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace cutlass_py {

class TimingRounds {
 public:
  using Clock = std::chrono::steady_clock;

  // Until then what takes long runs unmeasured: the clock settles where a long run has it. Of a short call the power
  // limit is not reached.
  static constexpr std::chrono::milliseconds kSettled{100};
  static constexpr float kLong = 25;  // microseconds
  // Of long calls those that took so many times the fastest in two rounds in a row run no more: they wait for memory
  // for most of their time, and what is measured beside them has a higher clock than in a program without them.
  static constexpr float kFar = 1.5f;
  static constexpr int kFarRounds = 2;
  // The measurement ends behind the round that reaches this.
  static constexpr std::chrono::seconds kLongEnough{2};
  static constexpr int kMostCalls = 8;
  static constexpr float kBurst = 400;  // microseconds of calls, as far as there are several

  TimingRounds(size_t choices, int rounds) : rounds_(rounds), each_(choices) {}

  bool left() const { return round_ < rounds_; }
  int calls() const { return calls_; }
  // Whose turn it is: nobody is always the first on an idle device.
  size_t turn(size_t i) const { return (i + turns_) % each_.size(); }
  bool runs(size_t i) const { return !each_[i].failed && each_[i].far < kFarRounds; }

  void failed(size_t i) { each_[i].failed = failed_ = true; }
  // Microseconds of a call in this round, of one that runs.
  void took(size_t i, float time) { each_[i].latest = time; }

  // Of a round, when it was over.
  void end(Clock::time_point now) {
    float fastest = std::numeric_limits<float>::infinity();
    for (const Choice& x : each_) {
      if (!x.failed && x.far < kFarRounds) fastest = std::min(fastest, x.latest);
    }
    if (round_ == kWarmUp) begun_ = now;  // what came before was the host's: modules are loaded
    const bool load = fastest >= kLong && std::isfinite(fastest), again = load && now - begun_ < kSettled;
    for (Choice& x : each_) {
      if (x.far == kFarRounds) x.latest = x.behind * fastest;
      if (round_ >= 0 && !x.failed) x.times.push_back(x.latest);
      if (round_ == kWarmUp || x.far == kFarRounds) continue;
      x.behind = x.latest / fastest;
      x.far = load && x.behind > kFar ? x.far + 1 : 0;
    }
    if (failed_) {  // what was ahead of the others may be gone: all take part again
      for (Choice& x : each_) x.far = 0;
    }
    failed_ = false, ++turns_;
    if (round_ < 0) calls_ = int(std::clamp(kBurst / std::max(fastest, 1.0f), 1.0f, float(kMostCalls)));
    if (round_ >= 0 && now - begun_ > kLongEnough) rounds_ = 0;
    if (round_ != kSettling || !again) ++round_;
  }

  // Of each choice one for each round; infinite where it failed. What runs no more stays as far behind as it was.
  std::vector<std::vector<float>> times() const {
    std::vector<std::vector<float>> found;
    for (const Choice& x : each_) {
      found.push_back(x.failed ? std::vector<float>{std::numeric_limits<float>::infinity()} : x.times);
    }
    return found;
  }

 private:
  // The first round warms up; the next one tells how many calls to time, as often as it takes the clock to settle.
  static constexpr int kWarmUp = -2, kSettling = -1;

  struct Choice {
    bool failed = false;
    int far = 0;  // for how many rounds
    float latest = 0, behind = 1;
    std::vector<float> times;
  };

  int round_ = kWarmUp, rounds_, calls_ = 1;
  size_t turns_ = 0;
  bool failed_ = false;  // one, in this round
  Clock::time_point begun_;
  std::vector<Choice> each_;
};

}  // namespace cutlass_py
