//! Times as S3 writes and reads them.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];

/// Seconds since 1970.
pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs().cast_signed())
}

/// Year, month from 1, day: by walking the years, slowly and plainly.
fn date(mut days: i64) -> (i64, usize, i64) {
    // The calendar is written out: the server must not share code with the client that it checks.
    let leap = |year: i64| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let mut year = 1970;
    loop {
        let length = if leap(year) { 366 } else { 365 };
        if days < length {
            break;
        }
        days -= length;
        year += 1;
    }
    let february = if leap(year) { 29 } else { 28 };
    let mut month = 0;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month + 1, days + 1)
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`.
pub fn http(at: i64) -> String {
    let (year, month, day) = date(at / 86_400);
    let rest = at % 86_400;
    let weekday = WEEKDAYS[usize::try_from(at / 86_400 % 7).unwrap_or(0)];
    let hour = rest / 3600;
    let minute = rest / 60 % 60;
    let second = rest % 60;
    format!(
        "{weekday}, {day:02} {} {year} {hour:02}:{minute:02}:{second:02} GMT",
        MONTHS[month - 1]
    )
}

/// `1994-11-06T08:49:37.000Z`.
pub fn iso(at: i64) -> String {
    let (year, month, day) = date(at / 86_400);
    let rest = at % 86_400;
    format!(
        "{year}-{month:02}-{day:02}T{:02}:{:02}:{:02}.000Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

/// `19941106T084937Z`.
pub fn stamp(at: i64) -> String {
    iso(at).replace(['-', ':'], "").replace(".000", "")
}

/// Whether the stamp is within `seconds` of `at`.
pub fn is_near(text: &str, at: i64, seconds: i64) -> bool {
    // Stamps sort as times do.
    (stamp(at - seconds)..=stamp(at + seconds)).contains(&text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_instants() {
        assert_eq!(http(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(iso(951_782_400), "2000-02-29T00:00:00.000Z");
        assert_eq!(stamp(1_369_353_600), "20130524T000000Z");
        assert!(
            is_near("20130524T001000Z", 1_369_353_600, 900)
                && !is_near("20130524T001600Z", 1_369_353_600, 900)
        );
    }
}
