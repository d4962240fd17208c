//! Tracks which journal objects were read, and which failed.

use std::collections::{HashMap, HashSet};

/// Reads of an unreadable object before later objects of its node are applied without it.
const LOOKS_MAX: u32 = 3;
/// The most nodes without objects in the bucket whose last object is remembered.
const NODES_MAX: usize = 4096;

/// The progress over all journals.
#[derive(Debug, Default)]
pub struct ReadProgress {
    read: HashSet<String>,
    /// The last object of each node that was read.
    last: HashMap<String, String>,
    /// Damage of objects, which the status reports while the object exists.
    faults: HashMap<String, ObjectFault>,
}

#[derive(Debug, Default)]
struct ObjectFault {
    looks: u32,
    what: Option<String>,
}

impl ReadProgress {
    /// Forgets objects in this directory that are not listed any more.
    pub fn keep(&mut self, directory: &str, listed: &HashSet<&String>) {
        let stays = |name: &String| !name.starts_with(directory) || listed.contains(name);
        self.read.retain(stays);
        self.faults.retain(|name, _| stays(name));
        if self.last.len() > NODES_MAX {
            let nodes: HashSet<&str> = listed.iter().map(|name| node_of(name)).collect();
            self.last.retain(|node, _| nodes.contains(node.as_str()));
        }
    }

    /// Whether this object was read.
    pub fn is_read(&self, name: &str) -> bool {
        self.read.contains(name)
    }

    /// Whether this object or a later one of its node was read: its content is older than what is
    /// known of the node.
    pub fn is_late(&self, name: &str) -> bool {
        self.last.get(node_of(name)).is_some_and(|last| name <= last.as_str())
    }

    /// The object was read.
    pub fn done(&mut self, name: String) {
        if self.faults.get(&name).is_some_and(|fault| fault.what.is_none()) {
            self.faults.remove(&name);
        }
        if !self.is_late(&name) {
            self.last.insert(node_of(&name).to_owned(), name.clone());
        }
        self.read.insert(name);
    }

    /// The object was not readable as a whole; returns whether to wait for it.
    pub fn failed(&mut self, name: &str) -> bool {
        let fault = self.faults.entry(name.to_owned()).or_default();
        fault.looks = fault.looks.saturating_add(1);
        fault.looks < LOOKS_MAX
    }

    /// Sets what is wrong with an object; `None` if nothing is.
    pub fn note(&mut self, name: &str, what: Option<String>) {
        match self.faults.get_mut(name) {
            Some(fault) => fault.what = what,
            None if what.is_some() => {
                self.faults.insert(name.to_owned(), ObjectFault { looks: 0, what });
            }
            None => {}
        }
    }

    /// What is wrong with one of the existing objects.
    pub fn fault(&self) -> Option<&String> {
        self.faults.values().filter_map(|fault| fault.what.as_ref()).min()
    }
}

/// The node that wrote an object.
pub fn node_of(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(node, _)| node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_cannot_be_read_is_waited_for_a_while_and_is_late_then() {
        let mut progress = ReadProgress::default();
        progress.done("j/a/1".into());
        assert!(progress.failed("j/a/2") && progress.failed("j/a/2") && !progress.failed("j/a/2"));
        assert!(!progress.is_late("j/a/2") && !progress.is_late("j/a/3"));
        progress.done("j/a/3".into());
        assert!(progress.is_late("j/a/2") && !progress.is_read("j/a/2"));
        assert!(!progress.is_late("j/a/4") && !progress.is_late("j/b/1"), "of the same node alone");
    }

    #[test]
    fn what_a_listing_left_out_once_is_late_when_it_is_back() {
        let mut progress = ReadProgress::default();
        progress.done("j/a/1".into());
        progress.keep("j/b/", &HashSet::new());
        assert!(progress.is_read("j/a/1"), "another directory was listed");
        progress.keep("j/", &HashSet::new());
        assert!(!progress.is_read("j/a/1") && progress.is_late("j/a/1"));
    }

    #[test]
    fn a_complaint_lasts_as_long_as_its_object_is_damaged_and_there() {
        let mut progress = ReadProgress::default();
        progress.note("j/a/1", Some("damaged".into()));
        progress.done("j/a/1".into());
        assert_eq!(progress.fault().map(String::as_str), Some("damaged"));
        progress.note("j/a/1", None);
        assert_eq!(progress.fault(), None);
        progress.note("j/a/1", Some("damaged".into()));
        progress.keep("j/", &HashSet::new());
        assert_eq!(progress.fault(), None);
    }
}
