//! Moves bytes to and from the files of a simulated process.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use kvtier_disk::{Finish, Moved, Mover, Part, Refused, Transfer};

use super::medium::Medium;
use super::record::checksum;
use crate::world::World;

/// The time between two looks whether a device that hangs answers again.
pub const HANG_STEP: Duration = Duration::from_millis(20);

/// A mover whose transfers take time, and fail as the medium does.
#[derive(Debug)]
pub struct Device {
    pub world: Arc<World>,
    pub medium: Arc<Medium>,
}

impl Mover for Device {
    fn submit(&self, transfer: Transfer, done: Finish) -> Result<(), Refused> {
        let takes = Duration::from_micros(20 + self.world.below(400)) + self.medium.faults().slow;
        let (world, medium) = (self.world.clone(), self.medium.clone());
        kvtier_os::later(takes, move || move_when_it_answers(world, medium, transfer, done));
        Ok(())
    }

    fn close(&self) {}

    fn describe(&self) -> String {
        "simulated".into()
    }
}

fn move_when_it_answers(
    world: Arc<World>,
    medium: Arc<Medium>,
    mut transfer: Transfer,
    done: Finish,
) {
    if medium.faults().hangs {
        let again = move || move_when_it_answers(world, medium, transfer, done);
        return kvtier_os::later(HANG_STEP, again);
    }
    let result = move_all(&mut transfer, &world, &medium);
    let file = medium.file(transfer.file.as_fd());
    match &result {
        Ok(moved) => world.note(format_args!("{file}: {moved} bytes moved")),
        Err(error) => world.event(format_args!("transfer of {file} fails: {:?}", error.kind())),
    }
    done(Moved { transfer, result, unseen: false });
}

fn move_all(transfer: &mut Transfer, world: &World, medium: &Medium) -> io::Result<u64> {
    let file = File::from(transfer.file.try_clone()?);
    let mut moved = 0;
    for (n, part) in transfer.parts.iter_mut().enumerate() {
        moved += match part {
            Part::Write { at, from } => {
                kvtier_os::write_all_at(&file, (*from).as_ref(), *at)?;
                from.len() as u64
            }
            Part::Read { at, into, len } => {
                medium.before_read(world)?;
                let mut bytes = vec![0; *len];
                file.read_exact_at(&mut bytes, *at)?;
                world.note(format_args!("{len} bytes at {at} are {:08x}", checksum(&bytes)));
                into.write_at(0, &bytes).map_err(io::Error::other)?;
                if let Some(watch) = &mut transfer.watch {
                    watch(n, 0, &bytes);
                }
                *len as u64
            }
        };
    }
    Ok(moved)
}
