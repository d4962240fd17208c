//! Host names to addresses: resolved again often, cached for minutes, spread over all known
//! addresses.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::local_clock::Instant;

/// A name is asked again after this long; S3 changes its answers every few seconds.
const REFRESH_AFTER: Duration = Duration::from_secs(10);
/// An address that no answer named for this long is dropped.
const KEEP_FOR: Duration = Duration::from_secs(300);
/// The most addresses kept for one name.
const ADDRESSES_MAX: usize = 64;

/// What a [`Resolve`] answers with.
pub type Resolved<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'a>>;

/// Turns a host name into addresses.
pub trait Resolve: fmt::Debug + Send + Sync + 'static {
    /// The addresses of `host`, each with `port`.
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> Resolved<'a>;
}

/// The system's resolver.
#[derive(Debug, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> Resolved<'a> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    }
}

/// One address for every name: production host names on a server of one's own.
#[derive(Debug)]
pub struct StaticResolver(pub SocketAddr);

impl Resolve for StaticResolver {
    fn resolve<'a>(&'a self, _: &'a str, _: u16) -> Resolved<'a> {
        Box::pin(async move { Ok(vec![self.0]) })
    }
}

/// The addresses that recent answers named, by host and port.
#[derive(Debug)]
pub struct DnsCache {
    resolver: Box<dyn Resolve>,
    entries: Mutex<HashMap<(String, u16), CachedName>>,
}

#[derive(Debug)]
struct CachedName {
    asked: Instant,
    next: usize,
    addresses: Vec<(SocketAddr, Instant)>,
    /// Whether the next answer replaces the addresses instead of adding to them.
    stale: bool,
}

impl DnsCache {
    pub fn new(resolver: Box<dyn Resolve>) -> Self {
        DnsCache { resolver, entries: Mutex::default() }
    }

    /// Every address to try, in the order to try them: each call starts with another one.
    pub async fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if !self.is_stale(host, port)
            && let Some(entry) = self.cached(host, port, REFRESH_AFTER)
        {
            return Ok(entry);
        }
        // Without the lock. Several callers may resolve one name at a time, which costs a query and
        // no consistency: each insert merges.
        match self.resolver.resolve(host, port).await {
            Ok(answer) if !answer.is_empty() => self.insert(host, port, &answer),
            // No address and no error: as a failure.
            Ok(_) => {
                return self
                    .cached(host, port, KEEP_FOR)
                    .ok_or_else(|| io::ErrorKind::NotFound.into());
            }
            // A resolver that fails for a while must not take a working endpoint down.
            Err(e) => return self.cached(host, port, KEEP_FOR).ok_or(e),
        }
        self.cached(host, port, KEEP_FOR).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Resolves again before the next connection and replaces the cached addresses, since none of
    /// them responds. While the resolver fails too, they stay in use.
    pub fn invalidate(&self) {
        let mut all = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        all.values_mut().for_each(|entry| entry.stale = true);
    }

    fn is_stale(&self, host: &str, port: u16) -> bool {
        let all = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&(host.to_owned(), port)).is_some_and(|entry| entry.stale)
    }

    /// Drops an address that refused a connection, until an answer names it again.
    pub fn drop_address(&self, host: &str, port: u16, address: SocketAddr) {
        let mut all = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = all.get_mut(&(host.to_owned(), port)) {
            entry.addresses.retain(|(other, _)| *other != address);
        }
    }

    fn cached(&self, host: &str, port: u16, age_max: Duration) -> Option<Vec<SocketAddr>> {
        let mut all = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = all
            .get_mut(&(host.to_owned(), port))
            .filter(|entry| entry.asked.elapsed() < age_max)?;
        // Round robin over all addresses, so that one client's connections spread over the store's
        // hosts.
        entry.next = entry.next.wrapping_add(1);
        let start = entry.next % entry.addresses.len().max(1);
        let (before, after) = entry.addresses.split_at(start);
        let order: Vec<_> = after.iter().chain(before).map(|(address, _)| *address).collect();
        (!order.is_empty()).then_some(order)
    }

    fn insert(&self, host: &str, port: u16, answer: &[SocketAddr]) {
        let now = Instant::now();
        let mut all = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = all.entry((host.to_owned(), port)).or_insert(CachedName {
            asked: now,
            next: 0,
            addresses: Vec::new(),
            stale: false,
        });
        entry.asked = now;
        let stale = std::mem::take(&mut entry.stale);
        // Addresses of earlier answers stay for minutes. S3 names a few of many in each answer, and
        // connections spread over all of them.
        entry.addresses.retain(|(address, addresses)| {
            !stale && addresses.elapsed() < KEEP_FOR && !answer.contains(address)
        });
        entry.addresses.extend(answer.iter().map(|address| (*address, now)));
        let surplus = entry.addresses.len().saturating_sub(ADDRESSES_MAX);
        entry.addresses.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Script(Mutex<Vec<io::Result<Vec<SocketAddr>>>>);

    impl Resolve for Script {
        fn resolve<'a>(&'a self, _: &'a str, _: u16) -> Resolved<'a> {
            Box::pin(async { self.0.lock().unwrap().pop().unwrap() })
        }
    }

    fn address(n: u8) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, n], 80))
    }

    #[tokio::test]
    async fn connections_spread_over_all_addresses() {
        let names = DnsCache::new(Box::new(Script(Mutex::new(vec![Ok(vec![
            address(1),
            address(2),
            address(3),
        ])]))));
        let mut first: Vec<_> = Vec::new();
        for _ in 0..3 {
            first.push(names.addresses("h", 80).await.unwrap()[0]);
        }
        first.sort();
        assert_eq!(first, [address(1), address(2), address(3)]);
        names.drop_address("h", 80, address(2));
        assert!(!names.addresses("h", 80).await.unwrap().contains(&address(2)));
    }

    #[tokio::test]
    async fn cached_addresses_outlive_a_failing_resolver() {
        let script =
            vec![Err(io::ErrorKind::TimedOut.into()), Ok(vec![address(2)]), Ok(vec![address(1)])];
        let names = DnsCache::new(Box::new(Script(Mutex::new(script))));
        let age = |names: &DnsCache| {
            names
                .entries
                .lock()
                .unwrap()
                .values_mut()
                .for_each(|entry| entry.asked -= REFRESH_AFTER)
        };
        assert_eq!(names.addresses("h", 80).await.unwrap(), [address(1)]);
        age(&names);
        assert_eq!(names.addresses("h", 80).await.unwrap().len(), 2);
        age(&names);
        assert_eq!(names.addresses("h", 80).await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn what_is_stale_is_asked_anew_and_replaced() {
        let script = vec![
            Ok(vec![address(3)]),
            Err(io::ErrorKind::TimedOut.into()),
            Ok(vec![address(1), address(2)]),
        ];
        let names = DnsCache::new(Box::new(Script(Mutex::new(script))));
        assert_eq!(names.addresses("h", 80).await.unwrap().len(), 2);
        names.invalidate();
        assert_eq!(names.addresses("h", 80).await.unwrap().len(), 2, "better than nothing");
        assert_eq!(names.addresses("h", 80).await.unwrap(), [address(3)]);
        assert_eq!(names.addresses("h", 80).await.unwrap(), [address(3)]);
    }
}
