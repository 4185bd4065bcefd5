// SPDX-License-Identifier: Apache-2.0
#include "collector/src/exposition.h"

#include <gtest/gtest.h>

#include <limits>

namespace muster::collector {
namespace {

TEST(Exposition, WritesHelpAndTypeOncePerFamily) {
  Exposition page;
  page.add("train_loss_nats", "gauge", "Loss", {{"run", "a"}}, 2.5);
  page.add("other", "counter", "Other", {}, 1);
  page.add("train_loss_nats", "gauge", "Loss", {{"run", "b"}, {"rank", "0"}}, 3);
  EXPECT_EQ(
      page.text(),
      "# HELP other Other\n# TYPE other counter\nother 1\n"
      "# HELP train_loss_nats Loss\n# TYPE train_loss_nats gauge\n"
      "train_loss_nats{run=\"a\"} 2.5\ntrain_loss_nats{run=\"b\",rank=\"0\"} 3\n");
}

TEST(Exposition, EscapesLabelsAndHelp) {
  Exposition page;
  page.add("m", "gauge", "a\\b\n\"c\"", {{"run", "a\\b\n\"c\""}}, 0);
  EXPECT_EQ(
      page.text(), "# HELP m a\\\\b\\n\"c\"\n# TYPE m gauge\nm{run=\"a\\\\b\\n\\\"c\\\"\"} 0\n");
}

TEST(Exposition, WritesNamesThatPrometheusTakes) {
  Exposition page;
  page.add("9 bad-näme", "gauge", "x", {}, 0);
  EXPECT_NE(page.text().find("\n__bad_n__me 0\n"), std::string::npos) << page.text();
}

TEST(Exposition, WritesValuesThatAreNoNumbers) {
  Exposition page;
  const double infinity = std::numeric_limits<double>::infinity();
  page.add("a", "gauge", "x", {}, std::numeric_limits<double>::quiet_NaN());
  page.add("b", "gauge", "x", {}, infinity);
  page.add("c", "gauge", "x", {}, -infinity);
  EXPECT_NE(page.text().find("\na NaN\n"), std::string::npos);
  EXPECT_NE(page.text().find("\nb +Inf\n"), std::string::npos);
  EXPECT_NE(page.text().find("\nc -Inf\n"), std::string::npos);
}

}  // namespace
}  // namespace muster::collector
