//! Fault injection by an environment variable, and counts of calls.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// `symbol:nth:fault` by commas; `nth` counts from 1, `*` is always.
pub const FAIL: &str = "FAKEGPU_FAIL";

/// The injected result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call returns this code of its library.
    Code(i32),
    /// The call returns -1 with this `errno` (`E5`).
    Errno(i32),
    /// The call transfers at most this number of bytes (`S4096`; `Z` is 0).
    Short(usize),
}

/// What a rule injects; `H` is a call that never returns.
#[derive(Clone, Copy)]
enum Action {
    Fault(Fault),
    Hang,
}

struct Rule {
    symbol: String,
    nth: Option<u64>,
    action: Action,
}

static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    let text = std::env::var(FAIL).unwrap_or_default();
    text.split(',')
        .filter(|rule| !rule.is_empty())
        .map(|rule| parse(rule).unwrap_or_else(|| refuse(rule)))
        .collect()
});
static CALLS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// Counts a call of `symbol` and returns the fault to inject.
pub fn fault(symbol: &'static str) -> Option<Fault> {
    let nth = {
        let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = calls.entry(symbol).or_default();
        *calls += 1;
        *calls
    };
    let rule = RULES
        .iter()
        .find(|rule| rule.symbol == symbol && rule.nth.is_none_or(|only| only == nth))?;
    match rule.action {
        Action::Fault(fault) => Some(fault),
        Action::Hang => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
    }
}

/// The code to return, for functions that transfer no bytes.
pub fn code(symbol: &'static str) -> Option<i32> {
    match fault(symbol)? {
        Fault::Code(code) | Fault::Errno(code) => Some(code),
        Fault::Short(_) => None,
    }
}

/// The number of calls of each function.
pub fn calls() -> BTreeMap<&'static str, u64> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A number from the environment.
pub fn number<T: FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

fn parse(rule: &str) -> Option<Rule> {
    let mut parts = rule.split(':');
    let symbol = parts.next()?;
    let nth = parts.next()?;
    let action = parts.next()?;
    let nth = if nth == "*" { None } else { Some(nth.parse().ok()?) };
    let action = match action.split_at_checked(1)? {
        ("H", "") => Action::Hang,
        ("Z", "") => Action::Fault(Fault::Short(0)),
        ("E", errno) => Action::Fault(Fault::Errno(errno.parse().ok()?)),
        ("S", bytes) => Action::Fault(Fault::Short(bytes.parse().ok()?)),
        _ => Action::Fault(Fault::Code(action.parse().ok()?)),
    };
    Some(Rule { symbol: symbol.to_owned(), nth, action })
}

/// Panics, because a test with a misspelled rule would inject nothing.
fn refuse(rule: &str) -> Rule {
    panic!("{FAIL}: {rule:?} is not symbol:nth:fault")
}
