//! Times as S3 writes them.

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const DAY_S: u64 = 86_400;

/// Year, month from 1, day. Counts from March on, so that the day that not every year has is the last of a year.
fn date(days: u64) -> (u64, usize, u64) {
    // From the first of March of the year 0 on; 146,097 days later the calendar is the same again.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = year_of_era + 400 * era + u64::from(month <= 2);
    (year, month as usize, day)
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
    fn each_day_follows_the_one_before() {
        let is_leap = |year: u64| {
            (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400)
        };
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..200_000 {
            assert_eq!(date(days), (year, month, day));
            let last = match month {
                2 => 28 + u64::from(is_leap(year)),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day = if day == last { 1 } else { day + 1 };
            if day == 1 {
                month = month % 12 + 1;
                year += u64::from(month == 1);
            }
        }
    }

    #[test]
    fn times_are_written_as_s3_does() {
        assert_eq!(http(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(iso(951_827_696), "2000-02-29T12:34:56.000Z");
    }
}
