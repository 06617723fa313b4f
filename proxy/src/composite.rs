//! resourceVersions and continue tokens of responses that merge several clusters.
//!
//! The wire format is Karmada's: base64url of `{"<cluster>":"<resourceVersion>"}` with sorted keys, and of
//! `{"rv","cluster","continue"}`. In addition to the resourceVersion of each cluster, it contains the cache's sequence
//! number and the cache's id (`<resourceVersion>.<seq>.<cache>`), from which a watch continues, and a digest of the
//! visible portion of the cluster if the reader does not see all of it (`~<portion>` at the end). Objects read from
//! a member have no cache position and keep Karmada's form.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use crowsnest_index::{CacheId, Seq};
use serde::{Deserialize, Serialize};

use crate::Error;

/// Placeholder for the resourceVersion of a cluster that leaves the view.
const LEAVING: &str = "leaving";

/// The resourceVersion of each cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompositeVersion {
    positions: BTreeMap<String, Position>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Position {
    version: String,
    cache_position: Option<CachePosition>,
    /// `None` if all of the cluster's objects are visible.
    portion: Option<Portion>,
}

/// Digest of the filter that selects a cluster's visible objects. If it changed since a version, a client that resumes from
/// the version may miss objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Portion(u64);

impl Portion {
    /// If the digest changes in an upgrade, clients only have to list again.
    pub fn new(filter: &impl Hash) -> Self {
        Self(digest(filter))
    }
}

impl fmt::Display for Portion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A position in a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachePosition {
    pub seq: Seq,
    pub cache: CacheId,
}

impl Position {
    fn decode(value: String) -> Self {
        let mut parts = value.rsplitn(3, '.');
        let (cache, seq, version) = (parts.next(), parts.next(), parts.next());
        match (version, seq.and_then(|seq| seq.parse().ok()), cache) {
            (Some(version), Some(seq), Some(cache)) => {
                let (cache, portion) = match cache.split_once('~') {
                    Some((cache, portion)) => (cache, u64::from_str_radix(portion, 16).ok().map(Portion)),
                    None => (cache, None),
                };
                let cache_position = CachePosition { seq: Seq(seq), cache: CacheId::from(cache) };
                Self { version: version.to_owned(), cache_position: Some(cache_position), portion }
            }
            _ => Self { version: value, cache_position: None, portion: None },
        }
    }

    fn encode(&self) -> String {
        match (&self.cache_position, &self.portion) {
            (Some(CachePosition { seq, cache }), None) => format!("{}.{seq}.{cache}", self.version),
            (Some(CachePosition { seq, cache }), Some(portion)) => format!("{}.{seq}.{cache}~{portion}", self.version),
            (None, _) => self.version.clone(),
        }
    }
}

impl CompositeVersion {
    /// The version of one cluster, without a cache position.
    pub fn for_cluster(cluster: &str, version: &str) -> Self {
        let mut composite = Self::default();
        composite.set(cluster, version, None);
        composite
    }

    /// Decodes a resourceVersion. Invalid text results in a version without clusters.
    pub fn decode(text: &str) -> Self {
        let versions = decode_map(text).unwrap_or_default();
        Self { positions: versions.into_iter().map(|(cluster, value)| (cluster, Position::decode(value))).collect() }
    }

    /// True if a text has the form of a composite resourceVersion.
    pub fn is_valid(text: &str) -> bool {
        decode_map(text).is_some()
    }

    /// True if a client with this version has no objects: the version is empty, or names no cluster or only clusters without
    /// data.
    pub fn has_no_data(text: &str) -> bool {
        matches!(text, "" | "0")
            || decode_map(text).is_some_and(|versions| versions.values().all(|version| version == "0"))
    }

    /// The encoding is never empty, even without clusters: some clients cannot watch from an empty version.
    pub fn encode(&self) -> String {
        let versions: BTreeMap<&str, String> =
            self.positions.iter().map(|(cluster, position)| (cluster.as_str(), position.encode())).collect();
        // A map of strings always serializes.
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&versions).unwrap_or_default())
    }

    /// Sets a cluster's version and position; keeps its portion.
    pub fn set(&mut self, cluster: &str, version: &str, cache_position: Option<CachePosition>) {
        let portion = self.portion(cluster);
        self.positions.insert(cluster.to_owned(), Position { version: version.to_owned(), cache_position, portion });
    }

    /// Sets the portion of a cluster that was sent completely.
    pub fn set_portion(&mut self, cluster: &str, portion: Option<Portion>) {
        if let Some(position) = self.positions.get_mut(cluster) {
            position.portion = portion;
        }
    }

    /// The portion of a cluster that was sent; `None` if all of its objects were.
    pub fn portion(&self, cluster: &str) -> Option<Portion> {
        self.positions.get(cluster)?.portion
    }

    /// Advances all clusters to a position.
    pub fn advance_to(&mut self, cache_position: &CachePosition) {
        self.positions.values_mut().for_each(|position| position.cache_position = Some(cache_position.clone()));
    }

    /// Marks a cluster that left the view, while DELETED events of its objects are being sent.
    pub fn mark_leaving(&mut self, cluster: &str) {
        self.set(cluster, LEAVING, None);
    }

    /// True if the DELETED events of any leaving cluster were only partly sent.
    pub fn has_leaving_cluster(&self) -> bool {
        self.positions.values().any(|position| position.version == LEAVING)
    }

    pub fn remove(&mut self, cluster: &str) {
        self.positions.remove(cluster);
    }

    /// Removes the clusters that are marked as leaving and for which `has_left` is true. The other clusters advance to
    /// `reached`, up to which all changes were sent: without the removed cluster the version would otherwise refer to
    /// an earlier position, and a watch from it would send changes twice.
    pub fn remove_left_clusters(&mut self, has_left: impl Fn(&str) -> bool, reached: &CachePosition) {
        let before = self.positions.len();
        self.positions.retain(|cluster, position| position.version != LEAVING || !has_left(cluster));
        if self.positions.len() < before {
            self.advance_to(reached);
        }
    }

    pub fn clusters(&self) -> impl Iterator<Item = &str> {
        self.positions.keys().map(String::as_str)
    }

    /// True if DELETED events of the cluster's objects are being sent.
    pub fn is_marked_leaving(&self, cluster: &str) -> bool {
        self.version(cluster) == Some(LEAVING)
    }

    /// True if the version includes the cluster.
    pub fn includes(&self, cluster: &str) -> bool {
        self.positions.contains_key(cluster)
    }

    /// A cluster's own resourceVersion.
    pub fn version(&self, cluster: &str) -> Option<&str> {
        self.positions.get(cluster).map(|position| position.version.as_str())
    }

    /// True if any cluster has a cache position.
    pub fn has_cache_position(&self) -> bool {
        self.positions.values().any(|position| position.cache_position.is_some())
    }

    /// Sequence number up to which all changes were sent; None if a position belongs to another cache.
    pub fn seq(&self, cache: &CacheId) -> Option<Seq> {
        let positions: Vec<&CachePosition> =
            self.positions.values().filter_map(|position| position.cache_position.as_ref()).collect();
        let is_same_cache = positions.iter().all(|position| position.cache == *cache);
        positions.iter().map(|position| position.seq).max().filter(|_| is_same_cache)
    }
}

/// Decodes the map of clusters to positions.
fn decode_map(text: &str) -> Option<BTreeMap<String, String>> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}

/// Identity of a list: its resource, namespace, cluster and selectors. A continue token is valid for one list only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListId(u64);

impl ListId {
    pub fn new(list: &impl Hash) -> Self {
        Self(digest(list))
    }
}

/// A hash that is equal in all replicas of a release.
fn digest(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A continue token that is malformed or belongs to another list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid continue token: continue key is not valid")]
pub struct InvalidContinueToken;

/// Minimum length of a continue token in bytes.
const MIN_TOKEN_BYTES: usize = 16;

/// Position at which a list continues.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Continue {
    /// The composite resourceVersion of the first page.
    pub rv: String,
    pub cluster: String,
    /// Base64 of the position within the cluster, and of a digest of the list and the token. The position is
    /// `namespace/name` of the last object sent from the cache, followed by `/` if it is the last one of the cluster, or the
    /// continue token of the member.
    #[serde(rename = "continue")]
    position: String,
}

impl Continue {
    /// Parses the `continue` parameter of a list. None if it is empty, or too short for a token and not the beginning of
    /// one: the list then starts over, as in Karmada.
    ///
    /// # Errors
    ///
    /// The text is malformed or belongs to another list.
    pub fn decode(text: &str, list: ListId) -> Result<Option<Self>, InvalidContinueToken> {
        // Base64 of the `{` of every token begins with "e".
        if text.is_empty() || (text.len() < MIN_TOKEN_BYTES && !text.starts_with('e')) {
            return Ok(None);
        }
        let json = URL_SAFE_NO_PAD.decode(text).map_err(|_| InvalidContinueToken)?;
        let token: Self = serde_json::from_slice(&json).map_err(|_| InvalidContinueToken)?;
        match token == Self::new(&token.rv, &token.cluster, &token.after(), list) {
            true => Ok(Some(token)),
            false => Err(InvalidContinueToken),
        }
    }

    pub fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    /// Token that continues in `cluster` after a position; empty: at the start of the cluster.
    pub fn new(rv: &str, cluster: &str, after: &str, list: ListId) -> Self {
        let digest = digest(&(list, rv, cluster, after));
        let position = URL_SAFE_NO_PAD.encode(format!("{after}\n{digest:x}"));
        Self { rv: rv.to_owned(), cluster: cluster.to_owned(), position }
    }

    /// The position within the cluster; empty: its start.
    pub fn after(&self) -> String {
        let text = URL_SAFE_NO_PAD.decode(&self.position).ok().and_then(|text| String::from_utf8(text).ok());
        text.and_then(|text| Some(text.split_once('\n')?.0.to_owned())).unwrap_or_default()
    }
}

/// The state of the clusters that a list shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Snapshot {
    /// The current state.
    Latest,
    /// The current state, which must include this version.
    NotOlderThan(CompositeVersion),
    /// The state at this version.
    Exact(CompositeVersion),
    /// The state that the first page of the list showed.
    Rest(Continue),
}

impl Snapshot {
    /// Combines the parameters `resourceVersion` and `resourceVersionMatch` of a list as kube-apiserver does. A version with
    /// a limit and without `resourceVersionMatch` is exact.
    pub fn from_parameters(
        version: &str,
        version_match: &str,
        is_limited: bool,
        token: Option<Continue>,
    ) -> Result<Self, Error> {
        let is_any = matches!(version, "" | "0");
        match token {
            Some(_) if !is_any => {
                let text = "specifying resource version is not allowed when using continue";
                Err(Error::BadRequest(text.to_owned()))
            }
            Some(token) => Ok(Self::Rest(token)),
            None if is_any => Ok(Self::Latest),
            None if !CompositeVersion::is_valid(version) => {
                Err(Error::BadRequest(format!("invalid resource version {version:?}")))
            }
            None if version_match == "Exact" || (version_match.is_empty() && is_limited) => {
                Ok(Self::Exact(CompositeVersion::decode(version)))
            }
            None => Ok(Self::NotOlderThan(CompositeVersion::decode(version))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_round_trip_in_karmadas_format() {
        let mut composite = CompositeVersion::default();
        let (here, elsewhere) = (CacheId::from("c1"), CacheId::from("c2"));
        let cached = |seq| Some(CachePosition { seq: Seq(seq), cache: here.clone() });
        composite.set("m2", "9", cached(0));
        composite.set("m1", "7", cached(41));
        let text = composite.encode();
        assert_eq!(URL_SAFE_NO_PAD.decode(&text).unwrap(), br#"{"m1":"7.41.c1","m2":"9.0.c1"}"#);
        assert_eq!(CompositeVersion::decode(&text), composite);
        assert_eq!((composite.version("m2"), composite.seq(&here)), (Some("9"), Some(Seq(41))));
        assert_eq!((composite.seq(&elsewhere), composite.has_cache_position()), (None, true));
        composite.set_portion("m1", Some(Portion(255)));
        let text = composite.encode();
        assert_eq!(URL_SAFE_NO_PAD.decode(&text).unwrap(), br#"{"m1":"7.41.c1~ff","m2":"9.0.c1"}"#);
        assert_eq!(CompositeVersion::decode(&text), composite);
        assert_eq!((composite.portion("m1"), composite.portion("m2")), (Some(Portion(255)), None));
        assert_eq!(composite.seq(&here), Some(Seq(41)));
        composite.set("m1", "8", cached(42));
        assert_eq!(composite.portion("m1"), Some(Portion(255)), "the portion is unchanged");
        // Nothing has ever changed in a new cache.
        composite.remove("m1");
        assert_eq!(composite.seq(&here), Some(Seq(0)));
    }

    #[test]
    fn a_version_without_a_cluster_that_left_is_not_earlier() {
        let (mut composite, cache) = (CompositeVersion::default(), CacheId::from("c1"));
        let at = |seq| CachePosition { seq: Seq(seq), cache: cache.clone() };
        composite.set("m1", "7", Some(at(3)));
        composite.set("m2", "9", Some(at(8)));
        composite.mark_leaving("m2");
        composite.remove_left_clusters(|_| false, &at(9));
        assert_eq!((composite.has_leaving_cluster(), composite.seq(&cache)), (true, Some(Seq(3))));
        composite.remove_left_clusters(|cluster| cluster == "m2", &at(9));
        assert_eq!((composite.includes("m2"), composite.seq(&cache)), (false, Some(Seq(9))));
    }

    #[rstest::rstest]
    #[case("")]
    #[case("0")]
    #[case("zzz")]
    #[case("eyJtMSI6IjUifQ")]
    fn foreign_versions_have_no_cache_position(#[case] text: &str) {
        assert_eq!(CompositeVersion::decode(text).seq(&CacheId::from("c1")), None);
    }

    #[rstest::rstest]
    #[case("", true)]
    #[case("0", true)]
    #[case::no_cluster("e30", true)]
    #[case::cluster_without_data("eyJtMSI6IjAifQ", true)]
    #[case::cluster_with_data("eyJtMSI6IjAiLCJtMiI6IjUifQ", false)]
    #[case::cache_position("eyJtMSI6IjAuNyJ9", false)]
    #[case("zzz", false)]
    #[case("7", false)]
    fn versions_without_data_are_recognized(#[case] text: &str, #[case] expected: bool) {
        assert_eq!(CompositeVersion::has_no_data(text), expected);
    }

    #[test]
    fn a_version_without_clusters_is_valid() {
        assert_eq!(CompositeVersion::default().encode(), "e30");
    }

    #[test]
    fn karmadas_version_round_trips() {
        let text = "eyJtMSI6IjUifQ";
        let composite = CompositeVersion::decode(text);
        assert_eq!(
            (composite.version("m1"), composite.includes("m1"), composite.includes("m2")),
            (Some("5"), true, false)
        );
        assert_eq!(composite.encode(), text);
    }

    #[test]
    fn tokens_are_valid_for_one_list_only() {
        let (list, other_list) = (ListId::new(&"pods"), ListId::new(&"secrets"));
        let token = Continue::new("rv", "m1", "ns/a/b", list);
        let text = token.encode();
        assert_eq!(token.after(), "ns/a/b");
        assert_eq!(Continue::decode(&text, list), Ok(Some(token)));
        assert_eq!(Continue::decode("", list), Ok(None));
        let start = Continue::new("rv", "m1", "", list);
        assert_eq!((start.after().as_str(), Continue::decode(&start.encode(), list)), ("", Ok(Some(start.clone()))));
        assert_eq!(Continue::decode(&text, other_list), Err(InvalidContinueToken));
        assert_eq!(Continue::decode("zzz", list), Ok(None));
        for length in 1..text.len() {
            assert_eq!(Continue::decode(&text[..length], list), Err(InvalidContinueToken), "truncated to {length}");
        }
        for damaged in [
            "eyJydiI6IiJ9eyJydiI6IiJ9",
            &text[..text.len() - 4],
            &text[1..],
            &format!("{text}AAAA"),
            &format!("{text}="),
        ] {
            assert_eq!(Continue::decode(damaged, list), Err(InvalidContinueToken), "{damaged}");
        }
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(Continue::decode(&changed, list), Err(InvalidContinueToken), "{changed}");
        }
    }

    const M1: &str = "eyJtMSI6IjUifQ";

    #[rstest::rstest]
    #[case::nothing("", "", true, false, Ok("latest"))]
    #[case::any("0", "NotOlderThan", false, false, Ok("latest"))]
    #[case::unlimited(M1, "", false, false, Ok("not older"))]
    #[case::not_older(M1, "NotOlderThan", true, false, Ok("not older"))]
    #[case::limited(M1, "", true, false, Ok("exact"))]
    #[case::exact(M1, "Exact", false, false, Ok("exact"))]
    #[case::rest("", "", true, true, Ok("rest"))]
    #[case::rest_of_any("0", "", false, true, Ok("rest"))]
    #[case::rest_of_a_version(
        M1,
        "",
        true,
        true,
        Err("specifying resource version is not allowed when using continue")
    )]
    #[case::not_composite("7", "", false, false, Err("invalid resource version \"7\""))]
    fn parameters_select_a_snapshot(
        #[case] version: &str,
        #[case] version_match: &str,
        #[case] is_limited: bool,
        #[case] has_token: bool,
        #[case] expected: Result<&str, &str>,
    ) {
        let token = has_token.then(|| Continue::new("rv", "m1", "", ListId::new(&"pods")));
        let snapshot =
            Snapshot::from_parameters(version, version_match, is_limited, token).map(|snapshot| match snapshot {
                Snapshot::Latest => "latest",
                Snapshot::NotOlderThan(_) => "not older",
                Snapshot::Exact(_) => "exact",
                Snapshot::Rest(_) => "rest",
            });
        assert_eq!(snapshot.map_err(|error| error.to_string()), expected.map_err(str::to_owned));
    }
}
