//! The end of a run in which an operation never ends.

use std::time::Duration;

use tokio::time::timeout;

use crate::world::World;

/// How long a run may take: each ends within a few minutes by itself.
const RUN_MAX: Duration = Duration::from_secs(30 * 60);

/// Runs a simulation. If it does not end, each operation that is open then is a finding.
pub async fn end_in_time(world: &World, run: impl Future<Output = ()>) {
    if timeout(RUN_MAX, run).await.is_ok() {
        return;
    }
    let open = world.lock().operations.all();
    if open.is_empty() {
        world.finding("deadline", format!("the run has not ended after {RUN_MAX:?}"));
    }
    for (at, what) in open {
        world.finding("deadline", format!("{what}, which began at {at:?}, does not end"));
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[test]
    fn an_operation_that_never_ends_is_a_finding() {
        crate::network::virtual_runtime().block_on(async {
            let world = World::new(7, false);
            end_in_time(&world, sleep(RUN_MAX / 2)).await;
            assert!(world.lock().findings.is_empty());
            let [one, _two] = ["save [1] on node1", "load [2] on node2"]
                .map(|what| world.lock().operations.begin(Duration::ZERO, what.to_owned()));
            world.lock().operations.end(one);
            end_in_time(&world, std::future::pending()).await;
            let state = world.lock();
            let [finding] = &state.findings[..] else { panic!("{:?}", state.findings) };
            assert!(finding.kind == "deadline" && finding.what.starts_with("load [2] on node2"));
        });
    }
}
