//! Checks and deletes a cache, for `crowsnest cache check` and `crowsnest cache rebuild`.
//!
//! Checks only read, so a running cache may be checked. The cache is not the source of truth: deleted contents are
//! collected again from the members.

use crowsnest_search::engine::{self, Inspection};
use crowsnest_store::Store;
use crowsnest_store::codec::Codec;
use crowsnest_store::sqlite::{self, SqliteStore};
use crowsnest_store::{CheckReport, Error, Seq, StoreOptions, format};
use std::path::Path;
use std::sync::Arc;

/// Reads the complete data directory of a cache: every database page, every body, the checksums of the text index, and
/// whether both agree. Fails only if the directory contains no cache or cannot be read.
pub async fn check(data_dir: &Path) -> Result<CheckReport, Error> {
    let path = data_dir.join(sqlite::FILE);
    if !path.is_file() {
        let source = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(Error::Io { path: path.display().to_string(), source });
    }
    let mut report = CheckReport::default();
    let store = match SqliteStore::open_read_only(data_dir, Arc::new(Codec::default())).await {
        Ok(store) => store,
        Err(error @ Error::Damaged { .. }) => {
            report.add_problem(error.chain());
            return Ok(report);
        }
        Err(error) => return Err(error),
    };
    store.check(&mut report).await?;
    let (opened_at, identity) = (store.latest().await?, store.stored_identity().await?);
    let text = engine::local_indexes().find_map(|local| (local.inspect)(data_dir).transpose()).transpose();
    // While another process writes, the two are read at different times and cannot be compared.
    let is_unchanged = store.newest_seq().await? == opened_at;
    check_text(text, &identity, opened_at, is_unchanged, &mut report);
    Ok(report)
}

fn check_text(
    text: Result<Option<Inspection>, Error>,
    identity: &str,
    latest: Seq,
    is_unchanged: bool,
    report: &mut CheckReport,
) {
    let inspection = match text {
        Ok(Some(inspection)) => inspection,
        Ok(None) => {
            report.behind = latest.0;
            return;
        }
        Err(error) => {
            report.add_problem(error.chain());
            return;
        }
    };
    report.documents = inspection.documents;
    let is_damaged = !inspection.damaged.is_empty();
    for file in inspection.damaged {
        report.add_problem(format!("the text index's file {} is damaged", file.display()));
    }
    if inspection.identity != identity {
        // It is deleted at the next start.
        report.behind = latest.0;
        return;
    }
    report.behind = latest.0.saturating_sub(inspection.seq.0);
    if is_unchanged && inspection.seq == latest && !is_damaged && inspection.documents != report.records {
        report.add_problem(format!(
            "the text index has {} documents of {} records",
            inspection.documents, report.records
        ));
    }
}

/// The part of a cache to delete, so that it is rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RebuildScope {
    /// The text index; it is rebuilt from the database.
    Text,
    /// Database and text index; the cache is filled again from the members.
    Everything,
}

/// Deletes the files; no process may have them open. Returns true if there were any.
pub fn discard(data_dir: &Path, scope: RebuildScope) -> Result<bool, Error> {
    let mut was_deleted = false;
    for folder in engine::local_indexes().flat_map(|local| local.folders) {
        was_deleted |= remove(&data_dir.join(folder))?;
    }
    if scope == RebuildScope::Everything {
        was_deleted |= sqlite::discard(data_dir)?;
    }
    Ok(was_deleted)
}

/// Deletes the records, and the cache's other files in `data_dir`. Returns false if there were none.
pub async fn delete_all(store: &StoreOptions, data_dir: Option<&Path>) -> Result<bool, Error> {
    // A database in use is rejected before anything is deleted.
    let records = format::discard(store, None).await?;
    let files = data_dir.map_or(Ok(false), |data_dir| discard(data_dir, RebuildScope::Everything))?;
    Ok(records || files)
}

fn remove(path: &Path) -> Result<bool, Error> {
    match std::fs::remove_dir_all(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(Error::Io { path: path.display().to_string(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GlobalCache;
    use crate::cache::OpenedStore;
    use crowsnest_members::Fleet;
    use crowsnest_store::fixtures::{cluster, draft, resource_of};
    use crowsnest_store::{Batch, Progress, RecordWrite};
    use crowsnest_store::{CacheOptions, CollectionKey, Epoch, Interests};
    use serde_json::json;
    use std::io::{Seek, SeekFrom, Write};
    use std::sync::Arc;

    const PODS: usize = 300;

    /// Fills a cache with some hundred different pods and closes it.
    async fn fill(data_dir: &Path) {
        let unreachable_config = kube::Config::new(http::Uri::from_static("http://127.0.0.1:1"));
        let fleet = Fleet::empty(kube::Client::try_from(unreachable_config).unwrap());
        let (options, codec) = (CacheOptions::new(data_dir), Arc::new(Codec::default()));
        let store = Arc::new(SqliteStore::open(&options, Arc::clone(&codec)).await.unwrap());
        let opened = OpenedStore { store, replicated: None, codec: Arc::clone(&codec) };
        let cache = GlobalCache::with_store(fleet, options, Interests::default(), opened, false).await.unwrap();
        let pod = |nth: usize| {
            let annotation =
                format!("{:x}", (nth as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)).repeat(60);
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "a", "name": format!("pod-{nth}"),
                "uid": format!("uid-{nth}"), "resourceVersion": "1", "annotations": {"said": annotation}}})
        };
        let writes = (0..PODS).map(|nth| {
            let draft = draft(&pod(nth));
            let packed = codec.pack("/Pod", &draft.body).unwrap().0;
            RecordWrite::Put(Box::new(draft), packed)
        });
        let collection = CollectionKey::new(cluster("member1"), resource_of(&pod(0)));
        let batch =
            Batch { collection, epoch: Epoch::UNSHARED, writes: writes.collect(), progress: Progress::default() };
        cache.inner.shared.writer.apply_and_wait(batch).await.unwrap();
        let latest = cache.seq();
        cache.searcher().searchable().wait_for(|seq| *seq >= latest).await.unwrap();
        cache.stop().await;
    }

    /// Overwrites a page in the middle of a file.
    fn damage(path: &Path) {
        const PAGE: u64 = 8192;
        let length = std::fs::metadata(path).unwrap().len();
        let mut file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.seek(SeekFrom::Start(length / 2 / PAGE * PAGE)).unwrap();
        file.write_all(&[0xAA; PAGE as usize]).unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn damage_is_found() {
        let data_dir = tempfile::tempdir().unwrap();
        assert!(check(data_dir.path()).await.unwrap_err().to_string().contains("cache.sqlite"));
        fill(data_dir.path()).await;
        let report = check(data_dir.path()).await.unwrap();
        assert_eq!(
            (report.is_sound(), report.records, report.documents, report.behind),
            (true, PODS as u64, PODS as u64, 0),
            "{report:?}"
        );

        let folder = engine::local_indexes().flat_map(|local| local.folders).next().unwrap();
        let text = data_dir.path().join(folder);
        let mut files = std::fs::read_dir(&text).unwrap().map(|entry| entry.unwrap().path());
        damage(&files.find(|path| path.extension().is_some_and(|e| e == "store")).unwrap());
        let report = check(data_dir.path()).await.unwrap();
        assert!(report.problems.iter().all(|p| p.starts_with("the text index")) && !report.is_sound(), "{report:?}");
        assert!(discard(data_dir.path(), RebuildScope::Text).unwrap());
        let report = check(data_dir.path()).await.unwrap();
        assert_eq!((report.is_sound(), report.documents, report.behind > 0), (true, 0, true), "{report:?}");

        damage(&data_dir.path().join(sqlite::FILE));
        assert!(!check(data_dir.path()).await.unwrap().is_sound());
        assert!(discard(data_dir.path(), RebuildScope::Everything).unwrap());
        assert!(!discard(data_dir.path(), RebuildScope::Everything).unwrap());
        // The cache can be filled again.
        fill(data_dir.path()).await;
        assert!(check(data_dir.path()).await.unwrap().is_sound());
    }

    #[tokio::test]
    async fn other_files_are_refused_in_one_line() {
        let data_dir = tempfile::tempdir().unwrap();
        std::fs::write(data_dir.path().join(sqlite::FILE), vec![b'x'; 9000]).unwrap();
        let options = CacheOptions::new(data_dir.path());
        let refused = SqliteStore::open(&options, Arc::default()).await.unwrap_err().chain();
        assert!(refused.contains("it is damaged; `crowsnest cache rebuild`") && !refused.contains('\n'), "{refused}");
        let report = check(data_dir.path()).await.unwrap();
        assert!(report.problems[0].contains("is damaged"), "{report:?}");
        discard(data_dir.path(), RebuildScope::Everything).unwrap();
        assert_eq!(SqliteStore::open(&options, Arc::default()).await.unwrap().latest().await.unwrap(), Seq(0));
    }
}
