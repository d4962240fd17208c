//! The three time formats of S3.

/// `YYYYMMDDTHHMMSSZ` of one instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp([u8; 16]);

impl Stamp {
    /// Of `seconds` since 1970 (those before it and after 9999 are clipped).
    pub fn of(seconds: i64) -> Self {
        let seconds = seconds.clamp(0, 253_402_300_799);
        let days = seconds.div_euclid(86_400);
        let rest = seconds.rem_euclid(86_400);
        let (year, month, day) = civil(days);
        let mut out = *b"00000000T000000Z";
        let parts = [
            (0, 4, year),
            (4, 2, month),
            (6, 2, day),
            (9, 2, rest / 3600),
            (11, 2, rest / 60 % 60),
            (13, 2, rest % 60),
        ];
        for (at, width, mut value) in parts {
            for slot in out[at..at + width].iter_mut().rev() {
                *slot = b'0' + u8::try_from(value % 10).expect("a digit");
                value /= 10;
            }
        }
        Stamp(out)
    }

    /// All of it.
    pub fn text(&self) -> &[u8; 16] {
        &self.0
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("ASCII digits")
    }

    /// `YYYYMMDD`.
    pub fn day(&self) -> &[u8; 8] {
        self.0.first_chunk().expect("sixteen bytes")
    }
}

/// Seconds since 1970 of an HTTP date such as `Sun, 06 Nov 1994 08:49:37 GMT`.
pub fn http_date(text: &str) -> Option<i64> {
    let (_, rest) = text.trim().split_once(", ")?;
    let mut words = rest.split(' ');
    let day = words.next()?.parse().ok()?;
    let names =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let name = words.next()?;
    let month = names.iter().position(|other| *other == name)?;
    let year = words.next()?.parse().ok()?;
    let clock = words.next()?;
    (words.next()? == "GMT").then_some(())?;
    seconds_of([year, i64::try_from(month).ok()? + 1, day], clock)
}

/// Seconds since 1970 of an ISO 8601 time in UTC such as `2026-11-20T16:00:00.000Z`.
pub fn iso(text: &str) -> Option<i64> {
    let (date, clock) = text.trim().strip_suffix('Z')?.split_once('T')?;
    let mut parts = date.splitn(3, '-').map(|part| part.parse().ok());
    let date = [parts.next()??, parts.next()??, parts.next()??];
    seconds_of(date, clock.split('.').next()?)
}

fn seconds_of([year, month, day]: [i64; 3], clock: &str) -> Option<i64> {
    let mut parts = clock.splitn(3, ':').map(|part| part.parse::<i64>().ok());
    let hour = parts.next()??;
    let minute = parts.next()??;
    let second = parts.next()??;
    let sane =
        (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    let sane =
        sane && (0..24).contains(&hour) && (0..60).contains(&minute) && (0..=60).contains(&second);
    sane.then(|| days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Days since 1970-01-01, counting years from March so that leap days come last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The inverse of [`days`].
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_instants() {
        assert_eq!(Stamp::of(0).as_str(), "19700101T000000Z");
        assert_eq!(Stamp::of(1_369_353_600).as_str(), "20130524T000000Z");
        assert_eq!(Stamp::of(951_782_399).as_str(), "20000228T235959Z");
        assert_eq!(Stamp::of(951_782_400).as_str(), "20000229T000000Z");
        assert_eq!(http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(iso("2013-05-24T00:00:00.000Z"), Some(1_369_353_600));
        assert_eq!(iso("2013-05-24T00:00:00Z"), Some(1_369_353_600));
    }

    #[test]
    fn every_day_of_four_centuries_goes_there_and_back() {
        for day in (0..146_097).step_by(7) {
            let (year, month, date) = civil(day);
            assert_eq!(days(year, month, date), day);
        }
    }

    #[test]
    fn nonsense_is_none() {
        for text in [
            "",
            "Sun, 06 Nov",
            "Sun, 06 Foo 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "x, 99999999999999999999",
        ] {
            assert_eq!(http_date(text), None, "{text}");
        }
        for text in [
            "",
            "2013-05-24",
            "2013-13-24T00:00:00Z",
            "2013-05-24T25:00:00Z",
            "T:Z",
            "999999-01-01T00:00:00Z",
        ] {
            assert_eq!(iso(text), None, "{text}");
        }
    }
}
