//! One object in the cache, and its revisions.

use crowsnest_apimachinery::status::{ApiError, Reason};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::{GlobalCache, Object, RecordKey, Seq};
use crowsnest_search::ObjectRevisions;

/// 404, the same for an object that does not exist and for one that the caller must not read.
pub(super) fn not_found_error(key: &RecordKey) -> ApiError {
    let (resource, cluster) = (&key.resource().resource, key.cluster());
    ApiError::new(
        Reason::NotFound,
        format!("{resource} {:?} not found in {cluster}, or you cannot read it there", &*key.name),
    )
    .with_object(&key.resource().group, resource, &key.name)
}

/// The revisions of an object. Fails with 404 if it does not exist or the caller must not read it.
pub(super) async fn get_revisions(
    cache: &GlobalCache,
    user: &UserInfo,
    key: &RecordKey,
) -> Result<ObjectRevisions, ApiError> {
    cache.searcher().object_history(user, key).await.map_err(ApiError::internal)?.ok_or_else(|| not_found_error(key))
}

/// Finds the revision with a sequence number, or the current object for `now`. Fails if it is not retained.
pub(super) fn find_revision<'p>(
    revisions: &'p ObjectRevisions,
    seq_or_now: &str,
    key: &RecordKey,
) -> Result<&'p Object, ApiError> {
    let found = match seq_or_now {
        "now" => revisions.current.as_ref(),
        seq => {
            let seq = seq
                .parse()
                .map(Seq)
                .map_err(|_| ApiError::bad_request(format!("invalid seq {seq:?} of a revision")))?;
            let objects = revisions.current.iter().chain(revisions.versions.iter().map(|version| &version.object));
            objects.into_iter().find(|object| object.record.seq == seq)
        }
    };
    found.ok_or_else(|| {
        ApiError::new(Reason::NotFound, format!("revision {seq_or_now} of {:?} is not kept", &*key.name))
    })
}
