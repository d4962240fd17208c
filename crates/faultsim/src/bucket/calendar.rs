//! Times as S3 writes them.

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const DAY_S: u64 = 86_400;

/// Year, month from 1, day.
fn date(mut days: u64) -> (u64, usize, u64) {
    let is_leap = |year: u64| {
        (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400)
    };
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
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
pub fn http(at_s: u64) -> String {
    let (year, month, day) = date(at_s / DAY_S);
    let weekday = WEEKDAYS[(at_s / DAY_S % 7) as usize];
    format!("{weekday}, {day:02} {} {year} {} GMT", MONTHS[month - 1], time(at_s % DAY_S))
}

/// `1994-11-06T08:49:37.000Z`.
pub fn iso(at_s: u64) -> String {
    let (year, month, day) = date(at_s / DAY_S);
    format!("{year}-{month:02}-{day:02}T{}.000Z", time(at_s % DAY_S))
}

fn time(second: u64) -> String {
    format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_s3_does() {
        assert_eq!(http(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(iso(951_827_696), "2000-02-29T12:34:56.000Z");
    }
}
