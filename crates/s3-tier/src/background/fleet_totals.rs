//! What all nodes together count, as the evictor publishes it: one object, overwritten after each of
//! its rounds.
//!
//! The evictor reads the journals of all nodes. If every node did, the requests would grow with the
//! square of the fleet. So the nodes of a fleet of more than [`DIRECT_NODES_MAX`] read this object
//! instead, and the evictor's journal for its deletes.
//!
//! ```text
//! kvtier bucket totals
//! format: 1
//! node: host.12.1763726400000.0.1a2b3c4d
//! at: 1763726400000
//! nodes: 1000
//! used: 987654321
//! crc: 1a2b3c4d
//! ```
//!
//! Damaged, foreign, newer or old totals are as good as none: the node reads the journals of all.

use kvtier_key::BlockSums;
use kvtier_s3::Put;

use crate::background::own_objects;
use crate::state::shared::Shared;

const TITLE: &str = "kvtier bucket totals";
const FORMAT: u32 = 1;
/// The largest object that is read.
const BYTES_MAX: usize = 4096;
/// In a fleet of more nodes followers read totals in place of the journals of all.
pub const DIRECT_NODES_MAX: usize = 8;
/// Totals that are older than this many intervals count as none.
const FRESH_INTERVALS: u64 = 3;

/// What all nodes together count.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FleetTotals {
    /// The evictor that wrote them.
    pub node: String,
    /// When, in Unix milliseconds by the store's clock.
    pub at_ms: u64,
    /// How many nodes there are.
    pub nodes: usize,
    /// Bytes that are stored or being stored.
    pub used: u64,
}

impl FleetTotals {
    /// Their text.
    pub fn encode(&self) -> Vec<u8> {
        let FleetTotals { node, at_ms, nodes, used } = self;
        let mut text = format!(
            "{TITLE}\nformat: {FORMAT}\nnode: {node}\nat: {at_ms}\nnodes: {nodes}\nused: {used}\n"
        );
        text.push_str(&format!("crc: {:08x}\n", crc(&text)));
        text.into_bytes()
    }

    /// Reads some. Any bytes may be given; `None` for what is damaged, foreign or of a newer build.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (body, end) = text.rsplit_once("crc: ")?;
        if end != format!("{:08x}\n", crc(body)) {
            return None;
        }
        let mut lines = body.lines();
        if lines.next() != Some(TITLE) || lines.next() != Some(&format!("format: {FORMAT}")) {
            return None;
        }
        let mut totals = FleetTotals::default();
        for line in lines {
            match line.split_once(": ")? {
                ("node", node) => node.clone_into(&mut totals.node),
                ("at", ms) => totals.at_ms = ms.parse().ok()?,
                ("nodes", nodes) => totals.nodes = nodes.parse().ok()?,
                ("used", used) => totals.used = used.parse().ok()?,
                // Of a newer build.
                _ => {}
            }
        }
        (!totals.node.is_empty()).then_some(totals)
    }

    /// Whether a node can go by them now. `holder` is the evictor; a node that does not take part in
    /// the election has none.
    fn is_usable(&self, now_ms: u64, age_max_ms: u64, holder: Option<&str>) -> bool {
        self.nodes > DIRECT_NODES_MAX
            && self.at_ms.abs_diff(now_ms) <= age_max_ms
            && holder.is_none_or(|holder| holder == self.node)
    }
}

fn crc(text: &str) -> u32 {
    BlockSums::from_bytes(text.as_bytes()).whole()
}

/// Publishes what this node counts, as the evictor of `nodes` nodes.
pub async fn write(shared: &Shared, nodes: usize) -> kvtier_s3::Result<()> {
    let usage = shared.catalog().index.usage();
    let totals = FleetTotals {
        node: shared.node.name.clone(),
        at_ms: shared.node.server_ms(&shared.client),
        nodes,
        used: usage.used.saturating_add(usage.reserved),
    };
    let name = shared.node.own_names.totals();
    own_objects::put(&shared.client, &name, totals.encode(), &Put::default()).await.map(drop)
}

/// Reads the totals; `None` where there are none that this node can go by.
pub async fn read(shared: &Shared) -> kvtier_s3::Result<Option<FleetTotals>> {
    let name = shared.node.own_names.totals();
    let bytes = own_objects::get(&shared.client, &name, BYTES_MAX).await?;
    let totals = bytes.as_deref().and_then(FleetTotals::decode);
    let now_ms = shared.node.server_ms(&shared.client);
    let age_max_ms = FRESH_INTERVALS * shared.node.config.journal_every.as_millis() as u64;
    let holder = shared.node.holder();
    Ok(totals.filter(|totals| totals.is_usable(now_ms, age_max_ms, holder.as_deref())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> FleetTotals {
        FleetTotals {
            node: "host.12.1763726400000.0.1a2b3c4d".into(),
            at_ms: 1_763_726_400_000,
            nodes: 1000,
            used: 987_654_321,
        }
    }

    #[test]
    fn version_one_is_this() {
        let golden = include_bytes!("golden/totals-v1.txt");
        assert_eq!(String::from_utf8_lossy(&sample().encode()), String::from_utf8_lossy(golden));
        assert_eq!(FleetTotals::decode(golden), Some(sample()));
    }

    #[test]
    fn cut_changed_newer_and_foreign_totals_are_none() {
        let good = sample().encode();
        for len in 0..good.len() {
            assert_eq!(FleetTotals::decode(&good[..len]), None, "cut to {len}");
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x20;
            assert_eq!(FleetTotals::decode(&bad), None, "byte {at}");
        }
        let with_crc = |body: &str| format!("{body}crc: {:08x}\n", crc(body)).into_bytes();
        let newer = with_crc("kvtier bucket totals\nformat: 2\nnode: a\n");
        assert_eq!(FleetTotals::decode(&newer), None);
        let more = with_crc("kvtier bucket totals\nformat: 1\nnode: a\nshards: 3\n");
        assert!(FleetTotals::decode(&more).is_some_and(|totals| totals.node == "a"));
        let no_number = with_crc("kvtier bucket totals\nformat: 1\nnode: a\nused: many\n");
        assert_eq!(FleetTotals::decode(&no_number), None);
    }

    #[test]
    fn fresh_totals_of_the_evictor_of_a_large_fleet_are_gone_by() {
        let totals = FleetTotals { nodes: 9, at_ms: 1000, ..sample() };
        let holder = Some(totals.node.as_str());
        let is_usable = |now_ms, holder| totals.is_usable(now_ms, 50, holder);
        assert!(is_usable(1000, holder) && is_usable(1050, holder) && is_usable(950, None));
        assert!(!is_usable(1051, holder) && !is_usable(949, holder) && !is_usable(1000, Some("b")));
        let small = FleetTotals { nodes: DIRECT_NODES_MAX, ..totals.clone() };
        assert!(!small.is_usable(1000, 50, holder));
    }
}
