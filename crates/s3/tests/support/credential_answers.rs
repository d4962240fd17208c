//! What sources of credentials in the network answer.

use std::time::{SystemTime, UNIX_EPOCH};

use super::asker::SECRET;
use super::fake::Asked;

/// The time `seconds` from now, as AWS writes it.
pub fn iso(seconds: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + seconds;
    let days = now / 86_400;
    let rest = now % 86_400;
    // By the days since 0000-03-01, as years of that kind have their odd day at the end.
    let z = days + 719_468;
    let era = z / 146_097;
    let doe = z % 146_097;
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

/// What a container's agent and instance metadata say.
pub fn json(token: &str, seconds: u64) -> String {
    format!(
        r#"{{"Code": "Success", "Type": "AWS-HMAC", "LastUpdated": "{}", "AccessKeyId": "AKIDTEST", "SecretAccessKey": "{SECRET}",
        "Token": "{token}", "Expiration": "{}"}}"#,
        iso(0),
        iso(seconds)
    )
}

/// What STS says to an action.
pub fn sts(action: &str, access: &str, token: &str) -> String {
    let end = iso(3600);
    format!(
        "<{action}Response xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><{action}Result><Credentials>\
        <AccessKeyId>{access}</AccessKeyId><SecretAccessKey>{SECRET}</SecretAccessKey><SessionToken>{token}</SessionToken>\
        <Expiration>{end}</Expiration></Credentials><AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/kv/s</Arn>\
        <AssumedRoleId>A:s</AssumedRoleId></AssumedRoleUser></{action}Result></{action}Response>"
    )
}

pub fn is_sts(asked: &Asked, action: &str) -> bool {
    asked.method == "POST" && asked.body.contains(&format!("Action={action}&"))
}
