//! Ages of chunks, as in `--older 7d`.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::BadInput;

/// Now, in seconds since 1970.
pub fn now_s() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// Reads an age such as 7d, in seconds. `flag` is named in the error.
pub fn age(flag: &str, text: &str) -> Result<i64, BadInput> {
    let wrong = || {
        BadInput(format!(
            "{flag} {text:?} is no age; write a whole number and s, m, h, d or w, such as 7d"
        ))
    };
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds: i64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        'w' => 7 * 86_400,
        _ => return Err(wrong()),
    };
    let count = &text[..text.len() - 1];
    // `parse` alone would take a sign.
    let digits = count.bytes().all(|byte| byte.is_ascii_digit());
    let count = count.parse::<i64>().ok().filter(|_| digits);
    count.and_then(|count| count.checked_mul(seconds)).ok_or_else(wrong)
}

/// An age for people, in the largest unit of which there are at least two.
pub fn age_text(seconds: i64) -> String {
    let units = [(7 * 86_400, "w"), (86_400, "d"), (3600, "h"), (60, "m")];
    // From two of a unit on: `90m` says more than `1h`.
    let found = units.into_iter().find(|(unit, _)| seconds >= 2 * unit);
    found.map_or_else(
        || format!("{}s", seconds.max(0)),
        |(unit, name)| format!("{}{name}", seconds / unit),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_read_and_written() {
        let read = |text| age("--older", text).ok();
        assert_eq!(
            ["90s", "30m", "12h", "7d", "2w"].map(read),
            [90, 1800, 43_200, 604_800, 1_209_600].map(Some)
        );
        assert_eq!(
            ["", "7", "d", "-1d", "+1d", "1.5d", "7y", "7é", "99999999999999999999d"].map(read),
            [None; 9]
        );
        assert_eq!([0, 100, 7200, 200_000, -5].map(age_text), ["0s", "100s", "2h", "2d", "0s"]);
    }
}
