// All tests of the dashboard over one fixture and one browser. In this order: what is exact about the
// last step as the fixture starts with it, what follows the run, what loses a rank and the collector.
import "./units.test.mjs";
import "./matrix.test.mjs";
import "./charts.test.mjs";
import "./page.test.mjs";
