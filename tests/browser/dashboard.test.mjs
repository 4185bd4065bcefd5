// SPDX-License-Identifier: Apache-2.0
// All tests of the dashboard over one fixture and one browser. In this order: tests that need
// the last step with which the fixture starts, tests that advance the run, tests that lose a rank and the
// collector.
import "./units.test.mjs";
import "./matrix.test.mjs";
import "./charts.test.mjs";
import "./page.test.mjs";
