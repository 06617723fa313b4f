//! One object in the cache, and its revisions.

use crowsnest_apimachinery::status::{ApiError, Reason};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::{Index, Object, RecordKey, Seq};
use crowsnest_search::ObjectRevisions;

/// 404, the same for an object that does not exist and for one that the caller has no right to read.
pub(super) fn unknown(key: &RecordKey) -> ApiError {
    let (resource, cluster) = (&key.resource().resource, key.cluster());
    ApiError::new(
        Reason::NotFound,
        format!("{resource} {:?} not found in {cluster}, or you cannot read it there", &*key.name),
    )
    .with_object(&key.resource().group, resource, &key.name)
}

pub(super) async fn past(index: &Index, user: &UserInfo, key: &RecordKey) -> Result<ObjectRevisions, ApiError> {
    index.searcher().object_history(user, key).await.map_err(ApiError::internal)?.ok_or_else(|| unknown(key))
}

/// The revision that starts at the sequence number `wanted`, or the current object for `now`.
pub(super) fn version<'p>(past: &'p ObjectRevisions, wanted: &str, key: &RecordKey) -> Result<&'p Object, ApiError> {
    let now = past.now.iter();
    let found = match wanted {
        "now" => past.now.as_ref(),
        seq => {
            let seq = seq
                .parse()
                .map(Seq)
                .map_err(|_| ApiError::bad_request(format!("invalid seq {seq:?} of a revision")))?;
            let all = now.chain(past.versions.iter().map(|version| &version.object));
            all.into_iter().find(|object| object.record.seq == seq)
        }
    };
    found.ok_or_else(|| ApiError::new(Reason::NotFound, format!("revision {wanted} of {:?} is not kept", &*key.name)))
}
