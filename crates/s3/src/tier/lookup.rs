use std::sync::Arc;
use std::time::Instant;

use kvtier_core::{Error, ErrorKind, Hold, HoldId, Key, LookedUp, Mode, Presence, Removed};
use kvtier_key::Digest;
use tokio::task::JoinSet;

use super::load::may_be_foreign;
use super::shared::Shared;
use super::told::{Told, told};

/// How many heads are asked for at a time.
const HEADS_MAX: usize = 32;

/// Answers from what is known and fresh; `None` when the bucket has to be asked.
pub fn from_memory(shared: &Shared, keys: &[Key], how: (Mode, Hold)) -> Option<Result<LookedUp, Error>> {
    let mut found = vec![Presence::Unknown; keys.len()];
    for (key, presence) in keys.iter().zip(&mut found) {
        *presence = presence_of(shared.known(key.digest())?);
        if how.0 == Mode::Prefix && !presence.is_hit() {
            break;
        }
    }
    Some(hold(shared, keys, found, how.1))
}

fn presence_of(len: Option<u64>) -> Presence {
    len.map_or(Presence::Miss, |len| Presence::Hit { len })
}

/// Answers a lookup with heads for what is not known, several at a time.
pub async fn lookup(
    shared: Arc<Shared>,
    keys: Arc<[Key]>,
    how: (Mode, Hold),
    deadline: Instant,
) -> Result<LookedUp, Error> {
    let mut found = vec![Presence::Unknown; keys.len()];
    for first in (0..keys.len()).step_by(HEADS_MAX) {
        let window = first..keys.len().min(first + HEADS_MAX);
        let mut heads = JoinSet::new();
        for at in window.clone() {
            match shared.known(keys[at].digest()) {
                Some(len) => found[at] = presence_of(len),
                None => {
                    let (shared, key) = (Arc::clone(&shared), keys[at].clone());
                    heads.spawn(async move { (at, head(&shared, &key, deadline).await) });
                }
            }
            if how.0 == Mode::Prefix && found[at] == Presence::Miss {
                break;
            }
        }
        while let Some(done) = heads.join_next().await {
            let Ok((at, presence)) = done else { continue };
            found[at] = presence?;
        }
        if how.0 == Mode::Prefix && found[window].iter().any(|presence| !presence.is_hit()) {
            break;
        }
    }
    hold(&shared, &keys, found, how.1)
}

async fn head(shared: &Shared, key: &Key, deadline: Instant) -> Result<Presence, Error> {
    let name = shared.names.of(key)?;
    let object = shared.client.until(deadline).head(&name).await;
    let Some(object) = object.map_err(|e| shared.error("lookup", Some(key), e))? else {
        shared.vanished(key.digest());
        return Ok(Presence::Miss);
    };
    let good = match told(&object, key) {
        Told::Facts(_) => true,
        Told::Nothing => may_be_foreign(shared, key, object.total(), None),
        Told::Wrong => false,
    };
    if !good {
        shared.condemn(key.digest());
        return Ok(Presence::Miss);
    }
    shared.found(key, object.total(), false);
    Ok(Presence::Hit { len: object.total() })
}

fn hold(shared: &Shared, keys: &[Key], mut found: Vec<Presence>, hold: Hold) -> Result<LookedUp, Error> {
    let mut books = shared.books();
    books.index.expire_holds(shared.now_ms());
    let Hold::For(ttl) = hold else { return Ok(LookedUp::new(found, None)) };
    let mut hits: Vec<Digest> = Vec::with_capacity(keys.len());
    for (key, presence) in keys.iter().zip(&mut found) {
        // What went between looking and holding is a miss after all.
        match books.index.get(key.digest()) {
            Some(_) if presence.is_hit() => hits.push(*key.digest()),
            None if presence.is_hit() => *presence = Presence::Miss,
            _ => {}
        }
    }
    if hits.is_empty() {
        return Ok(LookedUp::new(found, None));
    }
    let until = shared.now_ms().saturating_add(ttl.as_millis() as u64);
    let id = books.index.hold(&hits, until);
    let id = id.map_err(|full| Error::new(ErrorKind::Throttled, "too many holds").with_source(full))?;
    Ok(LookedUp::new(found, Some(HoldId(id.as_u64()))))
}

/// Removes keys that nobody holds; those of other writers too.
pub async fn remove(shared: Arc<Shared>, keys: Arc<[Key]>, deadline: Instant) -> Result<Removed, Error> {
    if Instant::now() >= deadline {
        return Err(Error::new(ErrorKind::Timeout, "the deadline passed").with_op("remove"));
    }
    lookup(Arc::clone(&shared), Arc::clone(&keys), (Mode::Each, Hold::None), deadline).await?;
    let (mut counts, mut victims) = (Removed::default(), Vec::new());
    {
        let mut books = shared.books();
        books.index.expire_holds(shared.now_ms());
        for key in keys.iter() {
            match books.index.leave(key.digest()) {
                kvtier_index::Removed::Gone(entry) => victims.push(entry),
                kvtier_index::Removed::Held => counts.held += 1,
                _ => counts.absent += 1,
            }
        }
    }
    // Victims must be answered for whatever becomes of the caller: the client's own deadline bounds this.
    counts.removed = if victims.is_empty() { 0 } else { shared.delete(&shared.client, victims).await? };
    Ok(counts)
}
