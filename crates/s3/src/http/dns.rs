//! DnsCache to addresses: asked often, remembered for minutes, spread over all that were heard of.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::time::Instant;

/// A name is asked again after this long; S3 changes its answers every few seconds.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// An address that was not heard of for this long is forgotten.
const FORGET: Duration = Duration::from_secs(300);
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

/// The addresses heard of.
#[derive(Debug)]
pub struct DnsCache {
    resolver: Box<dyn Resolve>,
    known: Mutex<HashMap<(String, u16), CachedName>>,
}

#[derive(Debug)]
struct CachedName {
    asked: Instant,
    next: usize,
    heard: Vec<(SocketAddr, Instant)>,
    /// Whether the next answer replaces what was heard before.
    doubted: bool,
}

impl DnsCache {
    pub fn new(resolver: Box<dyn Resolve>) -> Self {
        DnsCache { resolver, known: Mutex::default() }
    }

    /// Every address to try, in the order to try them: each call starts with another one.
    pub async fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if !self.is_doubted(host, port)
            && let Some(known) = self.recall(host, port, ASK_AGAIN)
        {
            return Ok(known);
        }
        match self.resolver.resolve(host, port).await {
            Ok(answer) if !answer.is_empty() => self.learn(host, port, &answer),
            Ok(_) => {
                return self
                    .recall(host, port, FORGET)
                    .ok_or_else(|| io::ErrorKind::NotFound.into());
            }
            // A resolver that fails for a while must not take a working endpoint down.
            Err(e) => return self.recall(host, port, FORGET).ok_or(e),
        }
        self.recall(host, port, FORGET).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Asks again before the next connection, and believes the answer alone: what was heard before
    /// led to where nobody answers. (While the resolver fails too, it is all we have.)
    pub fn doubt(&self) {
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        all.values_mut().for_each(|known| known.doubted = true);
    }

    fn is_doubted(&self, host: &str, port: u16) -> bool {
        let all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&(host.to_owned(), port)).is_some_and(|known| known.doubted)
    }

    /// Forgets an address that refused us, until it is heard of again.
    pub fn drop_address(&self, host: &str, port: u16, address: SocketAddr) {
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get_mut(&(host.to_owned(), port)) {
            known.heard.retain(|(other, _)| *other != address);
        }
    }

    fn recall(&self, host: &str, port: u16, age_max: Duration) -> Option<Vec<SocketAddr>> {
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all
            .get_mut(&(host.to_owned(), port))
            .filter(|known| known.asked.elapsed() < age_max)?;
        known.next = known.next.wrapping_add(1);
        let start = known.next % known.heard.len().max(1);
        let (before, after) = known.heard.split_at(start);
        let order: Vec<_> = after.iter().chain(before).map(|(address, _)| *address).collect();
        (!order.is_empty()).then_some(order)
    }

    fn learn(&self, host: &str, port: u16, answer: &[SocketAddr]) {
        let now = Instant::now();
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.entry((host.to_owned(), port)).or_insert(CachedName {
            asked: now,
            next: 0,
            heard: Vec::new(),
            doubted: false,
        });
        known.asked = now;
        let doubted = std::mem::take(&mut known.doubted);
        known.heard.retain(|(address, heard)| {
            !doubted && heard.elapsed() < FORGET && !answer.contains(address)
        });
        known.heard.extend(answer.iter().map(|address| (*address, now)));
        let surplus = known.heard.len().saturating_sub(ADDRESSES_MAX);
        known.heard.drain(..surplus);
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
    async fn what_was_heard_outlives_a_failing_resolver() {
        let script =
            vec![Err(io::ErrorKind::TimedOut.into()), Ok(vec![address(2)]), Ok(vec![address(1)])];
        let names = DnsCache::new(Box::new(Script(Mutex::new(script))));
        let age = |names: &DnsCache| {
            names.known.lock().unwrap().values_mut().for_each(|known| known.asked -= ASK_AGAIN)
        };
        assert_eq!(names.addresses("h", 80).await.unwrap(), [address(1)]);
        age(&names);
        assert_eq!(names.addresses("h", 80).await.unwrap().len(), 2);
        age(&names);
        assert_eq!(names.addresses("h", 80).await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn what_is_doubted_is_asked_anew_and_replaced() {
        let script = vec![
            Ok(vec![address(3)]),
            Err(io::ErrorKind::TimedOut.into()),
            Ok(vec![address(1), address(2)]),
        ];
        let names = DnsCache::new(Box::new(Script(Mutex::new(script))));
        assert_eq!(names.addresses("h", 80).await.unwrap().len(), 2);
        names.doubt();
        assert_eq!(names.addresses("h", 80).await.unwrap().len(), 2, "better than nothing");
        assert_eq!(names.addresses("h", 80).await.unwrap(), [address(3)]);
        assert_eq!(names.addresses("h", 80).await.unwrap(), [address(3)]);
    }
}
