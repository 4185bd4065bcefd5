// SPDX-License-Identifier: Apache-2.0
// Policy files. A refusal names the file and a line of it; an accepted policy is complete.
#include <muster/common/check.h>
#include <muster/policy/policy.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

namespace {

using namespace muster;
using namespace muster::policy;

void check_policy(const Policy& policy) {
  MUSTER_CHECK(std::isfinite(policy.max_logit_threshold), "the threshold is a number");
  std::set<std::string> names;
  for (const Rule& rule : policy.rules) {
    MUSTER_CHECK(!rule.name.empty() && names.insert(rule.name).second, "names are unique");
    MUSTER_CHECK(!rule.actions.empty(), "a rule acts");
    MUSTER_CHECK(rule.cooldown_steps >= 0 && rule.budget >= -1, "limits are in range");
    PolicyState state;
    detect::Finding finding;
    finding.rule = rule.finding;
    finding.subject = rule.subject;
    MUSTER_CHECK(!decide(policy, finding, state).empty(), "a rule answers its finding");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(data, data + size);
  const auto policy = parse_policy(text, "policy.yaml");
  if (!policy.ok()) {
    constexpr std::string_view kSource = "policy.yaml:";
    const std::string message = policy.status().message();
    MUSTER_CHECK(message.starts_with(kSource) && message.size() > kSource.size() + 3, message);
    MUSTER_CHECK(message[kSource.size()] >= '1' && message[kSource.size()] <= '9', message);
    return 0;
  }
  check_policy(*policy);
  MUSTER_CHECK(*policy == parse_policy(text, "other.yaml").value(), "a text has one meaning");
  return 0;
}
