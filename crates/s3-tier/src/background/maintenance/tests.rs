use kvtier_index::journal::Record;
use kvtier_key::Digest;
use kvtier_testkit::s3::{Fault, Rule, Server};

use super::*;
use crate::Evictor;
use crate::state::own_journal::OBJECTS_MAX;
use crate::test_shared::shared_at;

/// They stayed until it had something to write.
#[tokio::test]
async fn a_node_with_nothing_to_write_deletes_old_objects_that_it_could_not_delete_before() {
    let server = Server::start(Default::default()).unwrap();
    let shared = Arc::new(shared_at(&server, |config| {
        config.capacity_bytes = Some(1000);
        config.sync.evictor = Evictor::Never;
    }));
    let node = &shared.node;
    let note = || node.journal.note([Record::Touch(Digest([1; 32]))]);
    let names: Vec<String> = (0..OBJECTS_MAX)
        .map(|_| {
            note();
            let (number, _) = node.journal.take().unwrap();
            node.journal.wrote(number);
            node.own_names.journal(&node.name, number)
        })
        .collect();
    names.iter().for_each(|name| server.put_object(name, vec![1]));
    let are_there = || [0, 1].map(|n: usize| server.object(&names[n]).is_some());
    let mut maintenance = Maintenance::new(Arc::clone(&shared));
    server.script(Rule::next(Fault::Error(403, "AccessDenied")).method("DELETE"));
    note();
    maintenance.round(false).await;
    assert_eq!(are_there(), [true, true], "the store refused");
    maintenance.round(false).await;
    assert_eq!(are_there(), [false, true]);
}

/// It took itself for alone, and filled the bucket beside others.
#[tokio::test]
async fn a_look_at_others_that_failed_is_no_exchange() {
    let server = Server::start(Default::default()).unwrap();
    let shared = Arc::new(shared_at(&server, |config| config.capacity_bytes = Some(1000)));
    let mut maintenance = Maintenance::new(Arc::clone(&shared));
    let refused = Fault::Error(400, "InvalidArgument");
    server.script(Rule::next(refused).containing("list-type").times(u32::MAX));
    maintenance.start().await;
    assert!(maintenance.is_announced && shared.node.budget.needs_exchange());
    let server = Server::start(Default::default()).unwrap();
    let shared = Arc::new(shared_at(&server, |config| config.capacity_bytes = Some(1000)));
    Maintenance::new(Arc::clone(&shared)).start().await;
    assert!(!shared.node.budget.needs_exchange(), "it is alone");
}
