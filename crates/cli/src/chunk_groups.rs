//! The groups of `kvtier stat --by`: chunks and bytes by model, tenant or namespace.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::chunk_info::{ChunkInfo, known};
use crate::json::json;

/// What chunks are summed up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum GroupBy {
    /// The model.
    Model,
    /// The tenant: digits of the digest of the cache salt, or those of the tenant.
    Tenant,
    /// The namespace's digest.
    Namespace,
}

impl GroupBy {
    /// Whether the last uses matter: they have the tenant of a key without a salt.
    pub fn needs_uses(self) -> bool {
        self == GroupBy::Tenant
    }

    fn group_of(self, info: &ChunkInfo) -> Option<String> {
        match self {
            GroupBy::Model => info.model.clone(),
            GroupBy::Tenant => info.tenant.clone(),
            GroupBy::Namespace => info.namespace.map(|digest| digest.to_hex()),
        }
    }

    fn name(self) -> &'static str {
        match self {
            GroupBy::Model => "model",
            GroupBy::Tenant => "tenant",
            GroupBy::Namespace => "namespace",
        }
    }
}

/// The chunks of one model, tenant or namespace.
#[derive(Clone, Debug, Default)]
struct Group {
    chunks: u64,
    bytes: u64,
}

/// Chunks by model, tenant or namespace. Those of which it is not known are one group.
#[derive(Debug)]
pub struct Groups {
    by: GroupBy,
    groups: BTreeMap<Option<String>, Group>,
}

impl Groups {
    /// No chunks yet.
    pub fn new(by: GroupBy) -> Self {
        Groups { by, groups: BTreeMap::new() }
    }

    /// Counts a chunk.
    pub fn add(&mut self, info: &ChunkInfo, bytes: u64) {
        let group = self.groups.entry(self.by.group_of(info)).or_default();
        group.chunks += 1;
        group.bytes += bytes;
    }

    /// Prints the groups, the largest first, as a table or as one JSON object.
    pub fn print(&self, as_json: bool) -> Result<()> {
        let mut groups: Vec<_> = self.groups.iter().collect();
        // The largest first: the question is what uses the space.
        groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.bytes));
        if as_json {
            let object = |(name, group): &(&Option<String>, &Group)| json!({ "name": name, "chunks": group.chunks, "bytes": group.bytes });
            let all = json!({ "by": self.by.name(), "groups": groups.iter().map(object).collect::<Vec<_>>() });
            return crate::stdout::line(&all.to_string());
        }
        let row = |(name, group): &(&Option<String>, &Group)| {
            vec![known(name), group.chunks.to_string(), kvtier::byte_size::format(group.bytes)]
        };
        let rows: Vec<_> = groups.iter().map(row).collect();
        let lines = crate::table::lines(&[self.by.name(), "chunks", "bytes"], &rows);
        lines.iter().try_for_each(|line| crate::stdout::line(line))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvtier::core::{Digest, Key, Namespace};
    use kvtier::key::{ChunkHash, KvRank, ObjectKey};

    use super::*;

    fn info(salt: &str) -> ChunkInfo {
        let id = ObjectKey::new("org/m", KvRank(0), 0, ChunkHash::new(b"hash"), salt).unwrap();
        ChunkInfo::of_key(&Key::new(Arc::new(Namespace::new("t", Digest::default())), id.into()))
    }

    #[test]
    fn groups_are_summed_up() {
        let mut groups = Groups::new(GroupBy::Model);
        groups.add(&info(""), 5);
        groups.add(&info("pepper"), 7);
        groups.add(&ChunkInfo::default(), 1);
        let found: Vec<_> = groups
            .groups
            .iter()
            .map(|(name, group)| (name.clone(), group.chunks, group.bytes))
            .collect();
        assert_eq!(found, [(None, 1, 1), (Some("org/m".to_owned()), 2, 12)]);
    }
}
