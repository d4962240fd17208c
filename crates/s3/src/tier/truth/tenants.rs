//! What tenants are called: journals tell of chunks only by a tenant's number, and the next snapshot comes later. One object for each tenant, a
//! manifest that tells of nothing else; whose have had nothing in the bucket for a day go.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kvtier_index::TenantId;

use super::bytes;
use super::manifest::{self, Manifest};
use crate::ops::all;
use crate::tier::shared::Shared;
use crate::time::Instant;
use crate::{Entry, Put};

/// The most names that are read after one look at the journals.
const READ_MAX: usize = 64;
/// Whose name is not there is asked for again with the next journals, and then less and less often, but at least this often: who could not
/// write it down tries that again with its next journal.
const AGAIN_MAX: Duration = Duration::from_secs(600);
/// The most names that are written before a journal; the others come with the next.
const WRITTEN_MAX: usize = 256;
/// How many are written at a time.
const WIDTH: usize = 16;
/// One who has nothing keeps the name for so many seconds.
const STAYS_S: i64 = 24 * 3600;

/// Writes the names of those who were met here and have something in the bucket.
pub async fn write(shared: &Shared) -> crate::Result<()> {
    let met = shared.books().take_met(WRITTEN_MAX);
    let failed = Mutex::new(None);
    let one = |(id, name): &(TenantId, String)| {
        let at_ms = shared.truth.server_ms(&shared.client);
        let told = Manifest { layout: shared.layout.name().to_owned(), at_ms, ..Manifest::default() };
        let bytes = Manifest { tenants: vec![(*id, name.clone())], ..told }.encode();
        let path = shared.truth.paths.tenant(*id);
        let (id, failed) = (*id, &failed);
        async move {
            if let Err(e) = bytes::put(&shared.client, &path, bytes, &Put::default()).await {
                shared.books().meet(id);
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
            }
            Ok::<_, Infallible>(())
        }
    };
    let Ok(()) = all(met.iter().map(one), WIDTH).await;
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Reads the names of those of whom only chunks were heard.
#[derive(Debug, Default)]
pub struct Nameless {
    /// Nobody had written these down: when they are asked for again, and the pause before that.
    unknown: HashMap<TenantId, (Instant, Duration)>,
}

impl Nameless {
    /// Asks for some of them.
    pub async fn ask(&mut self, shared: &Shared) -> crate::Result<()> {
        let (now, first) = (Instant::now(), shared.truth.config.journal_every);
        let is_due = |id: TenantId| self.unknown.get(&id).is_none_or(|(again, _)| *again <= now);
        let asked = shared.books().nameless(is_due, READ_MAX);
        if asked.is_empty() {
            return Ok(());
        }
        // Those whose chunks are all gone are asked for no more.
        self.unknown.retain(|id, _| shared.books().index.tenant_usage(*id).entries > 0);
        for id in asked {
            let found = bytes::get(&shared.client, &shared.truth.paths.tenant(id), manifest::BYTES_MAX).await?;
            let told = found.and_then(|bytes| Manifest::decode(&bytes).ok()).map(|told| told.tenants);
            match told.unwrap_or_default().into_iter().find(|(other, _)| *other == id) {
                Some((_, name)) => drop(shared.books().note_tenant(id, &name)),
                None => {
                    let pause = self.unknown.get(&id).map_or(first, |(_, pause)| (*pause * 2).min(AGAIN_MAX));
                    self.unknown.insert(id, (now + pause, pause));
                }
            }
        }
        Ok(())
    }
}

/// Deletes the names of those who have had nothing for long.
pub async fn tidy(shared: &Shared) -> crate::Result<()> {
    let paths = &shared.truth.paths;
    let (entries, date) = bytes::list(&shared.client, &paths.tenants()).await?;
    let old = |entry: &&Entry| date.is_some_and(|date| date - entry.modified > STAYS_S);
    let idle = |entry: &&Entry| {
        paths.tenant_of(&entry.key).is_some_and(|id| shared.books().index.tenant_usage(id).entries == 0)
    };
    let gone: Vec<&str> = entries.iter().filter(old).filter(idle).map(|entry| entry.key.as_str()).collect();
    for some in gone.chunks(1000) {
        shared.client.delete_many(some).await?;
    }
    Ok(())
}
