//! Requests that reached the bucket, by kind and by what they are about.

use super::http::{Request, decode};

/// The kinds that have prices of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestPrice {
    /// PUT, POST and LIST.
    Put,
    /// LIST, at the price of a PUT.
    List,
    /// GET and HEAD.
    Get,
    /// DELETE, which is free.
    Delete,
}

/// What requests are about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestArea {
    /// Chunks, and listings of all of them.
    Chunks,
    /// Journals of nodes.
    Journals,
    /// The lease of the evictor.
    Leases,
    /// The snapshot of the index.
    Snapshots,
    /// Settings of the bucket, the tenant key, and whatever else there is.
    Other,
}

const PRICES: usize = 4;
const AREAS: usize = 5;

/// How many requests there were.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RequestCounts([[u64; PRICES]; AREAS]);

impl RequestCounts {
    /// Counts a request for this decoded key, which is empty for the bucket itself.
    pub fn note(&mut self, request: &Request, key: &str) {
        let (price, area) = match (request.method.as_str(), key) {
            ("GET", "") if request.has("list-type") => {
                (RequestPrice::List, area(&decode(&request.value("prefix").unwrap_or_default())))
            }
            ("POST", _) | ("DELETE", _) => (RequestPrice::Delete, area(key)),
            ("GET" | "HEAD", "") => (RequestPrice::Get, RequestArea::Other),
            ("GET" | "HEAD", key) => (RequestPrice::Get, area(key)),
            (_, key) => (RequestPrice::Put, area(key)),
        };
        self.0[area as usize][price as usize] += 1;
    }

    /// Those of a kind in an area.
    pub fn of(&self, price: RequestPrice, area: RequestArea) -> u64 {
        self.0[area as usize][price as usize]
    }

    /// What came since `before`.
    pub fn since(&self, before: &RequestCounts) -> RequestCounts {
        let mut more = *self;
        for (area, before) in more.0.iter_mut().zip(&before.0) {
            area.iter_mut().zip(before).for_each(|(count, before)| *count -= before);
        }
        more
    }
}

fn area(key: &str) -> RequestArea {
    let Some((_, own)) = key.split_once("/.kvtier/") else { return RequestArea::Chunks };
    match own.split_once('/').map_or(own, |(directory, _)| directory) {
        "journal" => RequestArea::Journals,
        "lease" => RequestArea::Leases,
        "snapshot" => RequestArea::Snapshots,
        _ => RequestArea::Other,
    }
}
