use super::Asker;
use crate::endpoint::Provider;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::List;
use crate::ops::refusable_question::is_refusal;

/// The objects of this part, in order.
pub const KEYS: [&str; 4] = ["l/1", "l/2 +%é", "l/3", "l/m/4"];
/// Entries per page.
const PAGE: u32 = 2;
/// More pages than this would be a store that never ends.
const PAGES_MAX: usize = 16;

/// How a store lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Listing {
    /// Whether every object is listed at once after its PUT, whatever its name, once.
    pub complete: bool,
    /// Whether in the order of the names' bytes.
    pub sorted: bool,
    /// Whether pages are as small as asked for.
    pub pages: bool,
    /// Whether a listing can begin after a name.
    pub start_after: bool,
    /// Whether names can be folded at a slash.
    pub folds: bool,
    /// Whether a prefix may end anywhere, not only in a slash.
    pub any_prefix: bool,
}

impl Asker<'_> {
    /// Puts a few objects and lists them in several ways.
    pub async fn listing(&self, bytes: &[u8]) -> Result<Listing> {
        for key in KEYS {
            self.put(&self.of(key), bytes, &[]).await?;
        }
        let mut list = List::under(self.of("l/"));
        list.page_max = PAGE;
        let (mut found, pages) = self.names(&list).await?;
        let sorted = found.is_sorted();
        found.sort();
        let all: Vec<String> = KEYS.iter().map(|key| self.of(key)).collect();
        Ok(Listing {
            complete: found == all,
            sorted,
            pages,
            start_after: self.starts_after(&all).await?,
            folds: self.folds().await?,
            any_prefix: self.any_prefix().await?,
        })
    }

    fn of(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// All names, and whether no page was longer than asked for.
    async fn names(&self, list: &List) -> Result<(Vec<String>, bool)> {
        let mut found = Vec::new();
        let mut next = None::<String>;
        let mut short = true;
        for _ in 0..PAGES_MAX {
            let page = self.client.list(list, next.as_deref()).await?;
            short &= page.entries.len() <= PAGE as usize;
            found.extend(page.entries.into_iter().map(|entry| entry.key));
            next = page.next;
            if next.is_none() {
                return Ok((found, short));
            }
        }
        Err(Error::new(ErrorKind::Corrupt, "the store's listing of a few objects does not end"))
    }

    async fn starts_after(&self, all: &[String]) -> Result<bool> {
        let mut list = List::under(self.of("l/"));
        list.start_after = Some(all[1].clone());
        answer(self.client.list(&list, None).await.map(|page| {
            let names: Vec<&str> = page.entries.iter().map(|entry| entry.key.as_str()).collect();
            names == [all[2].as_str(), all[3].as_str()]
        }))
    }

    async fn folds(&self) -> Result<bool> {
        let mut list = List::under(self.of("l/"));
        list.delimiter = Some("/".into());
        answer(
            self.client
                .list(&list, None)
                .await
                .map(|page| page.entries.len() == 3 && page.prefixes == [self.of("l/m/")]),
        )
    }

    async fn any_prefix(&self) -> Result<bool> {
        // The client does not even ask there.
        if self.client.endpoint().provider() == Provider::Express {
            return Ok(false);
        }
        let list = List::under(self.of("l/m"));
        answer(self.client.list(&list, None).await.map(|page| page.entries.len() == 1))
    }
}

/// A refusal is an answer: no.
fn answer(asked: Result<bool>) -> Result<bool> {
    match asked {
        Err(e) if is_refusal(&e) => Ok(false),
        other => other,
    }
}
