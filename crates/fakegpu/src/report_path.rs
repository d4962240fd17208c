/// The path of the report.
pub const REPORT: &str = "FAKEGPU_REPORT";
