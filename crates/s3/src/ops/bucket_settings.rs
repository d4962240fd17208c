//! What a bucket makes of deleted and old objects: settings with which a cap on its bytes is a
//! fiction.

use super::refusable_question::{ANSWER_BYTES_MAX, answered, is_refusal};
use crate::attempt::CollectedResponse;
use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::request::Request;
use crate::retry::RequestKind;
use crate::xml;

/// The documents that say it, and the element in them that does.
const VERSIONING: [&str; 2] = ["VersioningConfiguration", "Status"];
const OBJECT_LOCK: [&str; 2] = ["ObjectLockConfiguration", "ObjectLockEnabled"];
const OTHER: &str = "the store answers another question";

/// What a bucket is set to.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Setting {
    /// It is on.
    On,
    /// It was on, and what it kept then is still there.
    Suspended,
    /// It is off.
    Off,
    /// The store does not report it, for this reason.
    Unknown(String),
}

/// A rule by which the store itself deletes or moves objects.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Rule {
    /// Its name.
    pub id: String,
    /// Whether it is followed.
    pub enabled: bool,
    /// Which objects it is about: those whose names begin with this.
    pub prefix: String,
    /// Whether it is about objects with tags only; ours have none.
    pub tagged: bool,
    /// Whether it deletes objects after some time.
    pub expires: bool,
    /// Whether it deletes old versions.
    pub expires_versions: bool,
    /// The storage class to which it moves objects.
    pub moves_to: Option<String>,
}

/// The rules by which the store itself deletes or moves objects.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Lifecycle {
    /// These; often none.
    Rules(Vec<Rule>),
    /// The store does not report it, for this reason.
    Unknown(String),
}

/// What of a bucket's settings concerns a cache.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Whether deleted objects are kept as versions.
    pub versioning: Setting,
    /// Whether objects may be locked against deletion.
    pub object_lock: Setting,
    /// What the store deletes or moves by itself.
    pub lifecycle: Lifecycle,
}

impl Client {
    /// Asks what the bucket is set to: three requests. What the store has no call for, or denies,
    /// is an answer too.
    pub async fn settings(&self) -> Result<Settings> {
        Ok(Settings {
            versioning: self.setting("versioning", VERSIONING).await?,
            object_lock: self.setting("object-lock", OBJECT_LOCK).await?,
            lifecycle: self.lifecycle().await?,
        })
    }

    /// A setting of the bucket, by one element below the root of the answer to `GET ?name`.
    async fn setting(&self, name: &str, [root, field]: [&str; 2]) -> Result<Setting> {
        match self.ask_setting(name).await {
            Ok(answer) => Ok(setting(&answer.body, root, field)),
            Err(e) if is_unset(&e) => Ok(Setting::Off),
            Err(e) => why_not(e).map(Setting::Unknown),
        }
    }

    async fn lifecycle(&self) -> Result<Lifecycle> {
        match self.ask_setting("lifecycle").await {
            Ok(answer) => Ok(lifecycle(&answer.body)),
            Err(e) if is_unset(&e) => Ok(Lifecycle::Rules(Vec::new())),
            Err(e) => why_not(e).map(Lifecycle::Unknown),
        }
    }

    async fn ask_setting(&self, name: &str) -> Result<CollectedResponse> {
        let request = Request { query: &[(name, "")], ..Request::new("GET", None) };
        self.run(
            RequestKind::Control,
            "settings",
            answered(&self.inner, &request, ANSWER_BYTES_MAX),
        )
        .await
    }
}

/// Whether the bucket has no such setting; one that does not exist has none either, and that is an
/// error.
fn is_unset(e: &Error) -> bool {
    e.kind() == ErrorKind::NotFound && e.code() != Some("NoSuchBucket")
}

/// Why the store does not report the setting, if the error says so.
fn why_not(e: Error) -> Result<String> {
    let plain = is_refusal(&e) || e.kind() == ErrorKind::Denied;
    match plain {
        true => {
            Ok(e.code().map_or_else(|| format!("HTTP {}", e.status().unwrap_or(0)), str::to_owned))
        }
        false => Err(e),
    }
}

/// Some stores answer questions that they do not know with something else, such as a listing: that
/// is no answer.
pub fn setting(body: &[u8], root: &str, field: &str) -> Setting {
    let mut found = Setting::Off;
    let read = xml::each_in(body, root, |path, text| match path {
        [_, name] if name == field => {
            found = match text.trim() {
                "Enabled" => Setting::On,
                "Suspended" => Setting::Suspended,
                _ => Setting::Off,
            };
        }
        _ => {}
    });
    if read.is_ok() { found } else { Setting::Unknown(OTHER.into()) }
}

/// The rules in a `LifecycleConfiguration`.
pub fn lifecycle(body: &[u8]) -> Lifecycle {
    let mut rules = Vec::new();
    let mut rule = Rule::default();
    let read = xml::each_in(body, "LifecycleConfiguration", |path, text| match path {
        [_, one] if one == "Rule" => rules.push(std::mem::take(&mut rule)),
        [_, one, rest @ ..] if one == "Rule" => rule.learn(rest, text.trim()),
        _ => {}
    });
    if read.is_ok() { Lifecycle::Rules(rules) } else { Lifecycle::Unknown(OTHER.into()) }
}

impl Rule {
    /// Takes in one element below `Rule`, which may nest the prefix in a filter.
    fn learn(&mut self, path: &[String], text: &str) {
        let of = |at: usize| path.get(at).map_or("", String::as_str);
        match (of(0), of(path.len().saturating_sub(1))) {
            ("ID", _) => text.clone_into(&mut self.id),
            ("Status", _) => self.enabled = text == "Enabled",
            ("Prefix" | "Filter", "Prefix") => text.clone_into(&mut self.prefix),
            ("Filter", "Key") => self.tagged = true,
            ("Expiration", "Days" | "Date") => self.expires = true,
            ("NoncurrentVersionExpiration", "NoncurrentDays") => self.expires_versions = true,
            ("Transition", "StorageClass") => self.moves_to = Some(text.to_owned()),
            _ => {}
        }
    }

    /// Whether it is followed and about some of what begins with `prefix`.
    fn concerns(&self, prefix: &str) -> bool {
        self.enabled
            && !self.tagged
            && (self.prefix.starts_with(prefix) || prefix.starts_with(&self.prefix))
    }
}

impl Settings {
    /// What an operator of a cache under `prefix` should know, a sentence each: why a cap on its
    /// bytes does not hold, or why chunks go that were not evicted. None when all is well.
    pub fn caveats(&self, prefix: &str) -> Vec<String> {
        let mut all = Vec::new();
        let rules = match &self.lifecycle {
            Lifecycle::Rules(rules) => rules.as_slice(),
            Lifecycle::Unknown(_) => &[],
        };
        let cleans = rules.iter().any(|rule| rule.expires_versions && rule.concerns(prefix));
        all.extend(self.of_versions(cleans).map(str::to_owned));
        all.extend((self.object_lock == Setting::On).then(|| {
            "object lock is on: objects that cannot be deleted fill the bucket; use a bucket without it".to_owned()
        }));
        all.extend(rules.iter().filter(|rule| rule.concerns(prefix)).flat_map(Rule::caveats));
        let unknown = [
            (
                self.versioning.unknown(),
                "it keeps versions of what is evicted",
                "s3:GetBucketVersioning",
            ),
            (self.object_lock.unknown(), "it locks objects", "s3:GetBucketObjectLockConfiguration"),
            (
                self.lifecycle.unknown(),
                "it deletes or moves objects itself",
                "s3:GetLifecycleConfiguration",
            ),
        ];
        all.extend(unknown.into_iter().filter_map(|(why, what, allow)| {
            Some(format!(
                "the store does not report whether {what} ({}): allow {allow}, or check it yourself",
                why?
            ))
        }));
        all
    }

    fn of_versions(&self, cleans: bool) -> Option<&'static str> {
        match (&self.versioning, cleans) {
            (Setting::On, true) => Some(
                "versioning is on: what is evicted stays, beyond the cap, until a lifecycle rule deletes old versions",
            ),
            (Setting::On, false) => Some(
                "versioning is on: what is evicted stays as old versions and is paid for, whatever the cap says; \
                 suspend it, or let a lifecycle rule delete old versions",
            ),
            (Setting::Suspended, false) => Some(
                "versioning is suspended: versions kept before stay and are paid for; a lifecycle rule can delete them",
            ),
            _ => None,
        }
    }
}

impl Rule {
    fn caveats(&self) -> impl Iterator<Item = String> {
        let id = &self.id;
        let under = if self.prefix.is_empty() { "all objects" } else { &self.prefix };
        let expires = self
            .expires
            .then(|| format!("the lifecycle rule `{id}` deletes objects ({under}) by their age: chunks in use go too"));
        let moves = self.moves_to.as_ref().map(|class| {
            format!("the lifecycle rule `{id}` moves objects ({under}) to {class}: loads of them fail or cost more")
        });
        expires.into_iter().chain(moves)
    }
}

impl Setting {
    fn unknown(&self) -> Option<&str> {
        if let Setting::Unknown(why) = self { Some(why) } else { None }
    }
}

impl Lifecycle {
    fn unknown(&self) -> Option<&str> {
        if let Lifecycle::Unknown(why) = self { Some(why) } else { None }
    }
}

/// Every answer about settings.
#[cfg(any(fuzzing, clippy))]
pub fn fuzz_settings(body: &[u8]) {
    let versioning = setting(body, VERSIONING[0], VERSIONING[1]);
    let object_lock = setting(body, OBJECT_LOCK[0], OBJECT_LOCK[1]);
    drop(Settings { versioning, object_lock, lifecycle: lifecycle(body) }.caveats("p/"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_other_answers_are_not_taken_for_them() {
        let of = |body: &str| setting(body.as_bytes(), VERSIONING[0], VERSIONING[1]);
        assert_eq!(
            of("<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"),
            Setting::On
        );
        let suspended =
            "<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>";
        assert_eq!(of(suspended), Setting::Suspended);
        assert_eq!(of("<VersioningConfiguration/>"), Setting::Off);
        assert!(matches!(
            of("<ListBucketResult><Name>b</Name></ListBucketResult>"),
            Setting::Unknown(_)
        ));
        assert!(matches!(of("<html"), Setting::Unknown(_)));
    }

    const RULES: &str = "<LifecycleConfiguration xmlns='x'>\
        <Rule><ID>a</ID><Filter><And><Prefix>kv/</Prefix><ObjectSizeGreaterThan>1</ObjectSizeGreaterThan></And></Filter>\
        <Status>Enabled</Status><Transition><Days>3</Days><StorageClass>GLACIER</StorageClass></Transition></Rule>\
        <Rule><ID>b</ID><Prefix>other/</Prefix><Status>Enabled</Status><Expiration><Days>1</Days></Expiration></Rule>\
        <Rule><ID>c</ID><Filter><Prefix></Prefix></Filter><Status>Disabled</Status><Expiration><Days>1</Days></Expiration></Rule>\
        <Rule><ID>d</ID><Filter/><Status>Enabled</Status><NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays>\
        </NoncurrentVersionExpiration><AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation>\
        </AbortIncompleteMultipartUpload></Rule>\
        <Rule><ID>e</ID><Filter><And><Prefix></Prefix><Tag><Key>k</Key><Value>v</Value></Tag></And></Filter>\
        <Status>Enabled</Status><Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>";

    fn settings(versioning: Setting, lifecycle: Lifecycle) -> Settings {
        Settings { versioning, object_lock: Setting::Off, lifecycle }
    }

    #[test]
    fn rules_of_both_forms_are_read_and_only_those_for_the_prefix_are_reported() {
        let all = settings(Setting::On, lifecycle(RULES.as_bytes())).caveats("kv/");
        assert_eq!(all.len(), 2, "{all:?}");
        assert!(all[0].contains("until a lifecycle rule"), "{}", all[0]);
        assert!(all[1].contains("`a` moves objects (kv/) to GLACIER"), "{}", all[1]);
        let all = settings(Setting::Off, lifecycle(RULES.as_bytes())).caveats("");
        assert!(
            all.iter().any(|caveats| caveats.contains("`b` deletes objects (other/)")),
            "{all:?}"
        );
        let other = |caveats: &String| caveats.contains("`c`") || caveats.contains("`e`");
        assert!(!all.iter().any(other), "a rule that is off, and one for tags: {all:?}");
    }

    #[test]
    fn a_plain_bucket_has_no_caveats_and_a_silent_one_says_so() {
        let none = Lifecycle::Rules(Vec::new());
        assert_eq!(settings(Setting::Off, none).caveats("kv/"), Vec::<String>::new());
        let silent = Lifecycle::Unknown("AccessDenied".into());
        let caveats = settings(Setting::Unknown("NotImplemented".into()), silent).caveats("kv/");
        assert_eq!(caveats.len(), 2);
        assert!(
            caveats[0].contains("(NotImplemented)") && caveats[1].contains("(AccessDenied)"),
            "{caveats:?}"
        );
        assert!(matches!(lifecycle(b"<ListBucketResult/>"), Lifecycle::Unknown(_)));
    }
}
