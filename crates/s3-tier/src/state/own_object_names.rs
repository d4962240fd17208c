//! Names of the tier's own objects in the bucket.

/// The names of a tier's own objects, all below `.kvtier/` under its prefix. Every directory ends
/// in a slash, which S3 Express requires.
#[derive(Clone, Debug)]
pub struct OwnObjectNames {
    own: String,
}

impl OwnObjectNames {
    /// Under a prefix that is empty or ends in a slash.
    pub fn under(root: &str) -> Self {
        OwnObjectNames { own: format!("{root}.kvtier/") }
    }

    pub fn is_own(&self, name: &str) -> bool {
        name.starts_with(&self.own)
    }

    pub fn leases(&self) -> String {
        format!("{}lease/", self.own)
    }

    pub fn lease(&self, epoch: u64) -> String {
        format!("{}{epoch:016x}", self.leases())
    }

    /// The epoch of an object's name.
    pub fn epoch(&self, name: &str) -> Option<u64> {
        let digits = name.strip_prefix(&self.leases())?;
        let epoch = u64::from_str_radix(digits, 16).ok()?;
        (self.lease(epoch) == name).then_some(epoch)
    }

    pub fn journals(&self) -> String {
        format!("{}journal/", self.own)
    }

    /// The directory of one node's journal.
    pub fn journals_of(&self, node: &str) -> String {
        format!("{}{node}/", self.journals())
    }

    pub fn journal(&self, node: &str, number: u64) -> String {
        format!("{}{number:08x}", self.journals_of(node))
    }

    pub fn snapshots(&self) -> String {
        format!("{}snapshot/", self.own)
    }

    /// The manifest: which parts are a whole snapshot.
    pub fn snapshot(&self) -> String {
        format!("{}current", self.snapshots())
    }

    /// What the evictor counts for all nodes.
    pub fn totals(&self) -> String {
        format!("{}totals", self.own)
    }

    /// The key that turns names into identities of tenants.
    pub fn tenant_key(&self) -> String {
        format!("{}tenant-key", self.own)
    }

    /// The directory in which earlier builds stored names of tenants.
    pub fn tenant_names(&self) -> String {
        format!("{}tenant/", self.own)
    }

    pub fn part(&self, part: &str) -> String {
        format!("{}{part}", self.snapshots())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other nodes, of other builds too, look for them under these names.
    #[test]
    fn the_names_are_these() {
        let paths = OwnObjectNames::under("kv/");
        let names = [
            paths.leases(),
            paths.journals_of("host.1.2.0"),
            paths.snapshot(),
            paths.part("part-1"),
            paths.totals(),
            paths.tenant_key(),
            paths.tenant_names(),
        ];
        let expected = [
            "lease/",
            "journal/host.1.2.0/",
            "snapshot/current",
            "snapshot/part-1",
            "totals",
            "tenant-key",
            "tenant/",
        ];
        assert_eq!(names, expected.map(|name| format!("kv/.kvtier/{name}")));
    }

    #[test]
    fn epochs_read_back_and_nothing_else_does() {
        let paths = OwnObjectNames::under("kv/");
        assert_eq!(paths.lease(255), "kv/.kvtier/lease/00000000000000ff");
        assert_eq!(paths.epoch(&paths.lease(u64::MAX)), Some(u64::MAX));
        for odd in [
            "kv/.kvtier/lease/ff",
            "kv/.kvtier/lease/00000000000000FF",
            "kv/.kvtier/lease/x",
            "ff",
            "",
        ] {
            assert_eq!(paths.epoch(odd), None, "{odd}");
        }
        let bare = OwnObjectNames::under("");
        assert_eq!(bare.journal("host.1.2.0", 3), ".kvtier/journal/host.1.2.0/00000003");
        assert!(bare.is_own(&bare.snapshot()) && !bare.is_own("00/00ff"));
    }
}
