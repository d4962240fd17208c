//! What the environment says shall go wrong, and how often each function was called.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// `symbol:nth:fault` by commas; `nth` counts from 1, `*` is always.
pub const FAIL: &str = "FAKEGPU_FAIL";

/// What happens instead of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It answers this code of its library.
    Code(i32),
    /// It answers -1 with this in `errno` (`E5`).
    Errno(i32),
    /// It moves at most so many bytes (`S4096`; `Z` is none).
    Short(usize),
}

/// As the text says; `H` never returns.
#[derive(Clone, Copy)]
enum Told {
    Fault(Fault),
    Hang,
}

struct Rule {
    symbol: String,
    nth: Option<u64>,
    told: Told,
}

static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    let text = std::env::var(FAIL).unwrap_or_default();
    text.split(',')
        .filter(|rule| !rule.is_empty())
        .map(|rule| parse(rule).unwrap_or_else(|| wrong(rule)))
        .collect()
});
static CALLS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// Counts a call of `symbol` and answers what is to go wrong with it.
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
    match rule.told {
        Told::Fault(fault) => Some(fault),
        Told::Hang => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
    }
}

/// The code that a call shall answer, for functions that move nothing.
pub fn code(symbol: &'static str) -> Option<i32> {
    match fault(symbol)? {
        Fault::Code(code) | Fault::Errno(code) => Some(code),
        Fault::Short(_) => None,
    }
}

/// How often each function was called.
pub fn calls() -> BTreeMap<&'static str, u64> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A number out of the environment.
pub fn number<T: FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

fn parse(rule: &str) -> Option<Rule> {
    let mut parts = rule.split(':');
    let (symbol, nth, told) = (parts.next()?, parts.next()?, parts.next()?);
    let nth = if nth == "*" { None } else { Some(nth.parse().ok()?) };
    let told = match told.split_at_checked(1)? {
        ("H", "") => Told::Hang,
        ("Z", "") => Told::Fault(Fault::Short(0)),
        ("E", errno) => Told::Fault(Fault::Errno(errno.parse().ok()?)),
        ("S", bytes) => Told::Fault(Fault::Short(bytes.parse().ok()?)),
        _ => Told::Fault(Fault::Code(told.parse().ok()?)),
    };
    Some(Rule { symbol: symbol.to_owned(), nth, told })
}

/// A test that injects nothing by a misspelling would prove nothing.
fn wrong(rule: &str) -> Rule {
    panic!("{FAIL}: {rule:?} is no symbol:nth:fault")
}
