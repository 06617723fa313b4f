//! The text index: follows the store, serves searches, and can always be rebuilt.
//!
//! Written by one long-lived tantivy writer that follows the tail (or the store, if it is behind) and commits in
//! batches, with the reached seq as payload. Read by [`crate`].

pub(crate) mod doc_set;
pub(crate) mod engine;
pub(crate) mod names;
pub(crate) mod number_filter;
pub(crate) mod reader;
pub(crate) mod schema;
pub(crate) mod segments;
pub(crate) mod terms;
mod throttle;
mod tokenizer;
pub(crate) mod values;
pub(crate) mod writer;

use crate::engine::{Backend, Inspection, LocalIndex};
use arc_swap::ArcSwap;
use crowsnest_store::{CacheOptions, Error, Seq};
use number_filter::NumberFilters;
use reader::permitted_cache::PermittedCache;
use schema::Columns;
use segments::{MIN_RENUMBERED, Segment, Snapshot};
use std::collections::{BTreeSet, HashSet};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tantivy::directory::MmapDirectory;
use tantivy::index::SegmentId;
use tantivy::indexer::{IndexWriterOptions, LogMergePolicy, MergePolicy};
use tantivy::{
    Executor, Index as TantivyIndex, IndexReader, IndexSettings, IndexWriter, ReloadPolicy, Searcher, SegmentReader,
};
use terms::FilterCache;

/// The backend of this engine.
pub(crate) const BACKEND: Backend = Backend {
    name: "tantivy",
    open: |context| Box::pin(async move { engine::open(context) }),
    local: Some(LocalIndex { folders: &FOLDERS, inspect: TextIndex::inspect }),
};

/// Incremented with the schema, the tokenization or the references that are read; an index of another version is
/// rebuilt.
const VERSION: u32 = 13;

/// Warms up the next snapshot before searches use it, based on the queries to the previous one.
pub type WarmUp = dyn Fn(&TextIndex, &Snapshot, &Snapshot) + Send + Sync;

/// Maximum number of threads that search segments, shared by all searches.
const MAX_SEARCH_THREADS: usize = 8;

/// Maximum number of threads that merge segments.
const MAX_MERGE_THREADS: usize = 4;

/// Maximum number of threads of a writer for many objects. More are not faster, because one thread creates the documents.
const MAX_BULK_THREADS: usize = 3;

/// Memory of each of these threads in bytes, for about 20,000 pods.
const BULK_HEAP_BYTES: usize = 48_000_000;

/// Number of documents up to which one thread is faster than several.
const MAX_SINGLE_THREAD_DOCS: u64 = 100_000;

/// Folders of the index in the data directory. While it is rebuilt in one of them, searches use the other.
pub const FOLDERS: [&str; 2] = ["text", "text.anew"];

/// The index that searches use.
pub struct TextIndex {
    pub columns: Columns,
    /// Cached matches of filters in segments.
    pub filters: FilterCache,
    /// Filters of the numbers that occur in segments.
    pub number_filters: NumberFilters,
    /// Cached documents of segments that callers may read.
    pub permitted: PermittedCache,
    /// Threads that search segments. Created when the index is opened, so that they do not inherit the writer's low
    /// priority.
    threads: Executor,
    data_dir: PathBuf,
    current: ArcSwap<OpenIndex>,
}

/// A tantivy index in one of the folders, complete or being built.
pub struct OpenIndex {
    folder: &'static str,
    index: TantivyIndex,
    reader: IndexReader,
    snapshot: ArcSwap<Snapshot>,
}

impl std::fmt::Debug for TextIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TextIndex")
    }
}

/// Payload of a commit: the store and the seq of the last change.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Payload {
    pub version: u32,
    /// Identity of the store.
    pub identity: String,
    pub seq: u64,
}

impl TextIndex {
    /// Opens the index of this store, or creates an empty one.
    pub fn open(options: &CacheOptions, identity: &str) -> Result<(Arc<Self>, Payload), Error> {
        let data_dir = &options.data_dir;
        let found = Self::find_existing(data_dir)?
            .filter(|(_, _, payload)| payload.version == VERSION && payload.identity == identity);
        for folder in FOLDERS {
            let path = data_dir.join(folder);
            if found.as_ref().is_none_or(|(current, ..)| *current != folder) && path.exists() {
                tracing::info!(path = %path.display(), "building the text index from the store");
                remove(&path)?;
            }
        }
        let threads = start_search_threads()?;
        let (built, payload) = match found {
            Some((folder, index, payload)) => (OpenIndex::from_index(folder, index, Seq(payload.seq))?, payload),
            None => {
                let payload = Payload { version: VERSION, identity: identity.to_owned(), seq: 0 };
                (OpenIndex::empty(data_dir, FOLDERS[0])?, payload)
            }
        };
        let columns = Columns::from_schema(&built.index.schema()).map_err(|e| Error::text("has another schema", e))?;
        let filters = FilterCache::new(options.text_filter_cache_bytes);
        let (data_dir, current) = (data_dir.clone(), ArcSwap::from_pointee(built));
        let (number_filters, permitted) = (NumberFilters::default(), PermittedCache::default());
        let text = Self { columns, filters, number_filters, permitted, threads, data_dir, current };
        Ok((Arc::new(text), payload))
    }

    /// Inspects an index without using it; None if there is no usable one.
    pub(crate) fn inspect(data_dir: &Path) -> Result<Option<Inspection>, Error> {
        let Some((_, index, payload)) = Self::find_existing(data_dir)? else { return Ok(None) };
        if payload.version != VERSION {
            return Ok(None);
        }
        let fail = |e| Error::text("cannot be checked", e);
        let damaged = index.validate_checksum().map_err(fail)?;
        let documents = if damaged.is_empty() { index.reader().map_err(fail)?.searcher().num_docs() } else { 0 };
        let Payload { identity, seq, .. } = payload;
        Ok(Some(Inspection { identity, seq: Seq(seq), documents, damaged: damaged.into_iter().collect() }))
    }

    /// If a rebuild was interrupted, there are two indices: the one with the later seq is used.
    fn find_existing(data_dir: &Path) -> Result<Option<(&'static str, TantivyIndex, Payload)>, Error> {
        let mut best: Option<(&'static str, TantivyIndex, Payload)> = None;
        for folder in FOLDERS {
            let path = data_dir.join(folder);
            if !path.join("meta.json").exists() {
                continue;
            }
            // A damaged index is skipped, because it can be rebuilt.
            let Ok(index) = TantivyIndex::open_in_dir(path) else { continue };
            let Ok(meta) = index.load_metas() else { continue };
            let payload = meta.payload.and_then(|payload| serde_json::from_str::<Payload>(&payload).ok());
            let Some(payload) = payload else { continue };
            if best.as_ref().is_none_or(|(_, _, best_payload)| payload.seq > best_payload.seq) {
                best = Some((folder, index, payload));
            }
        }
        Ok(best)
    }

    /// An index in memory, for tests.
    #[cfg(test)]
    pub fn in_memory() -> Result<Arc<Self>, Error> {
        let threads = start_search_threads()?;
        let built = OpenIndex::from_index(FOLDERS[0], TantivyIndex::create_in_ram(Columns::schema()), Seq(0))?;
        let columns = Columns::from_schema(&built.index.schema()).map_err(|e| Error::text("has another schema", e))?;
        let filters = FilterCache::new(1 << 20);
        let current = ArcSwap::from_pointee(built);
        let (number_filters, permitted) = (NumberFilters::default(), PermittedCache::default());
        let data_dir = PathBuf::new();
        Ok(Arc::new(Self { columns, filters, number_filters, permitted, threads, data_dir, current }))
    }

    pub fn searcher(&self) -> Searcher {
        self.snapshot().searcher.clone()
    }

    /// The snapshot that searches use.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load().snapshot.load_full()
    }

    /// True if segments were merged since the current snapshot.
    pub fn has_merged_segments(&self) -> Result<bool, Error> {
        let built = self.current.load();
        let ids = built.index.searchable_segment_ids().map_err(|e| Error::text("cannot be reloaded", e))?;
        let current: BTreeSet<_> =
            built.snapshot.load().searcher.segment_readers().iter().map(SegmentReader::segment_id).collect();
        Ok(current != ids.into_iter().collect())
    }

    /// Calls a function for each segment, in parallel if there are many documents. Returns the results in the order of
    /// segments.
    pub fn map_segments<T: Send>(
        &self,
        snapshot: &Snapshot,
        work: impl Fn(&Segment) -> tantivy::Result<T> + Sync,
    ) -> tantivy::Result<Vec<T>> {
        self.map_parts_of(snapshot, snapshot.segments.iter(), work)
    }

    /// Like [`Self::map_segments`], for parts of the snapshot that the caller chooses.
    pub fn map_parts_of<P: Send, T: Send>(
        &self,
        snapshot: &Snapshot,
        parts: impl Iterator<Item = P>,
        work: impl Fn(P) -> tantivy::Result<T> + Sync,
    ) -> tantivy::Result<Vec<T>> {
        match snapshot.docs() < MAX_SINGLE_THREAD_DOCS {
            true => parts.map(work).collect(),
            false => self.threads.map(work, parts),
        }
    }

    /// Like [`Self::map_segments`], for parts that the caller chooses, and always in parallel.
    pub fn map_parts<P: Send, T: Send>(
        &self,
        parts: impl Iterator<Item = P>,
        work: impl Fn(P) -> tantivy::Result<T> + Sync,
    ) -> tantivy::Result<Vec<T>> {
        self.threads.map(work, parts)
    }

    /// Publishes the last commit, with all changes up to `seq`, to searches after it was warmed up.
    pub fn reload(&self, seq: Seq, warm_up: &WarmUp) -> Result<(), Error> {
        let current = self.current.load();
        current.reload(seq, |before, next| warm_up(self, before, next))?;
        // Until here, searches used the filters of the previous snapshot.
        self.number_filters.retain(&current.segment_ids());
        Ok(())
    }

    /// The only writer of the current index.
    pub fn writer(&self, heap_bytes: usize) -> Result<IndexWriter, Error> {
        self.current.load().writer(heap_bytes)
    }

    /// The only writer of the current index, like [`OpenIndex::bulk_writer`].
    pub fn bulk_writer(&self) -> Result<IndexWriter, Error> {
        self.current.load().bulk_writer()
    }

    /// Creates an empty index in the other folder.
    pub fn create_in_other_folder(&self) -> Result<OpenIndex, Error> {
        let current = self.current.load().folder;
        let folder = FOLDERS.into_iter().find(|folder| *folder != current).unwrap_or(FOLDERS[0]);
        OpenIndex::empty(&self.data_dir, folder)
    }

    /// Replaces the current index with `built`, which has all changes up to `seq`, and deletes the old one.
    pub fn replace(&self, built: OpenIndex, seq: Seq) -> Result<(), Error> {
        built.reload(seq, |_, _| {})?;
        let segments = built.segment_ids();
        let old = self.current.swap(Arc::new(built));
        self.number_filters.retain(&segments);
        // Searches that still use it keep its files open.
        remove(&self.data_dir.join(old.folder))
    }
}

fn remove(folder: &Path) -> Result<(), Error> {
    std::fs::remove_dir_all(folder).map_err(|source| Error::Io { path: folder.display().to_string(), source })
}

impl OpenIndex {
    fn empty(data_dir: &Path, folder: &'static str) -> Result<Self, Error> {
        let path = data_dir.join(folder);
        if path.exists() {
            remove(&path)?;
        }
        std::fs::create_dir_all(&path).map_err(|source| Error::Io { path: path.display().to_string(), source })?;
        let directory = MmapDirectory::open(&path).map_err(|e| Error::text("cannot open its directory", e))?;
        let settings = IndexSettings { docstore_compress_dedicated_thread: false, ..IndexSettings::default() };
        let index = TantivyIndex::create(directory, Columns::schema(), settings);
        Self::from_index(folder, index.map_err(|e| Error::text("cannot be created", e))?, Seq(0))
    }

    fn from_index(folder: &'static str, index: TantivyIndex, seq: Seq) -> Result<Self, Error> {
        tokenizer::register(index.tokenizers());
        let fail = |error| Error::text("cannot be read", error);
        let reader: IndexReader =
            index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into().map_err(fail)?;
        let snapshot =
            ArcSwap::from_pointee(Snapshot::new((reader.searcher(), seq), None, MIN_RENUMBERED).map_err(fail)?);
        Ok(Self { folder, index, reader, snapshot })
    }

    /// The segments that searches use.
    fn segment_ids(&self) -> HashSet<SegmentId> {
        self.snapshot.load().segments.iter().map(|segment| segment.data.reader.segment_id()).collect()
    }

    fn reload(&self, seq: Seq, warm_up: impl FnOnce(&Snapshot, &Snapshot)) -> Result<(), Error> {
        let fail = |error| Error::text("cannot be reloaded", error);
        self.reader.reload().map_err(fail)?;
        let before = self.snapshot.load();
        let next = Snapshot::new((self.reader.searcher(), seq), Some(&before), MIN_RENUMBERED).map_err(fail)?;
        warm_up(&before, &next);
        self.snapshot.store(Arc::new(next));
        Ok(())
    }

    /// A writer with one thread, which creates one segment per commit.
    pub fn writer(&self, heap_bytes: usize) -> Result<IndexWriter, Error> {
        self.open_writer(1, heap_bytes.max(15_000_000), MergeMode::Following)
    }

    /// A writer for many objects: several threads create large segments, and few merges follow.
    pub fn bulk_writer(&self) -> Result<IndexWriter, Error> {
        self.open_writer(cores().min(MAX_BULK_THREADS), BULK_HEAP_BYTES, MergeMode::Bulk)
    }

    fn open_writer(&self, threads: usize, heap_bytes: usize, mode: MergeMode) -> Result<IndexWriter, Error> {
        let options = IndexWriterOptions::builder()
            .num_worker_threads(threads)
            .memory_budget_per_thread(heap_bytes)
            // Each merge thread takes as much CPU as a search, even with low priority, so their number is limited.
            .num_merge_threads(cores().div_ceil(2).min(MAX_MERGE_THREADS))
            .build();
        let writer = self.index.writer_with_options(options);
        let writer = writer.map_err(|e| Error::text("cannot be written; check that no other process uses it", e))?;
        writer.set_merge_policy(merge_policy(mode));
        // A killed process leaves files of an uncommitted segment; creating them again under the same names would
        // fail.
        writer.garbage_collect_files().wait().map_err(|e| Error::text("cannot be cleaned up", e))?;
        Ok(writer)
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

fn start_search_threads() -> Result<Executor, Error> {
    let threads = Executor::multi_thread(cores().min(MAX_SEARCH_THREADS), "text-search-");
    threads.map_err(|e| Error::text("cannot start the threads that search it", e))
}

/// Load of the writer, by which segments are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MergeMode {
    Following,
    /// Many objects change.
    Burst,
    /// Catching up with the store.
    Filling,
    /// Catching up with very many changes.
    Bulk,
}

/// Few segments make searches fast, but merging fewer at a time repeats more work, so merges are deferred in a burst.
fn merge_policy(mode: MergeMode) -> Box<dyn MergePolicy> {
    let mut policy = LogMergePolicy::default();
    policy.set_min_num_segments(match mode {
        MergeMode::Following => 6,
        MergeMode::Burst => 16,
        MergeMode::Filling => 12,
        MergeMode::Bulk => 16,
    });
    policy.set_min_layer_size(match mode {
        MergeMode::Bulk => 25_000,
        _ => 5_000,
    });
    // Every update is a delete and an add; without this ratio, segments of deleted documents would never be merged.
    policy.set_del_docs_ratio_before_merge(0.4);
    Box::new(policy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Document;
    use crowsnest_store::fixtures::stored;
    use serde_json::json;
    use tantivy::Term;

    fn change(text: &TextIndex, change: impl FnOnce(&IndexWriter)) {
        let mut writer = text.writer(0).unwrap();
        change(&writer);
        let mut prepared = writer.prepare_commit().unwrap();
        prepared
            .set_payload(&serde_json::to_string(&Payload { version: VERSION, identity: "x".into(), seq: 1 }).unwrap());
        prepared.commit().unwrap();
        writer.wait_merging_threads().unwrap();
    }

    #[test]
    fn an_interrupted_commit_is_repeated() {
        let directory = tempfile::tempdir().unwrap();
        let options = CacheOptions::new(directory.path());
        let meta = directory.path().join("text/meta.json");
        let delete = |text: &TextIndex| {
            change(text, |writer| {
                writer.delete_term(Term::from_field_u64(text.columns.id, 1));
            });
        };
        let (text, _) = TextIndex::open(&options, "x").unwrap();
        change(&text, |writer| {
            // Enough documents that a single deletion causes no merge.
            for id in 1..=20 {
                let pod = json!({"kind": "Pod", "metadata": {"name": format!("pod-{id}"), "namespace": "a"}});
                let document = Document::from_object(&stored("member1", id, &pod)).unwrap();
                writer.add_document(document.to_tantivy(&text.columns)).unwrap();
            }
        });
        let before = std::fs::read(&meta).unwrap();
        delete(&text);
        // Simulates a process killed before the last file of the commit was written.
        drop(text);
        std::fs::write(&meta, before).unwrap();
        let (text, payload) = TextIndex::open(&options, "x").unwrap();
        assert_eq!((payload.seq, text.searcher().num_docs()), (1, 20));
        delete(&text);
        text.reload(crowsnest_store::Seq(0), &|_, _, _| {}).unwrap();
        assert_eq!(text.searcher().num_docs(), 19);
    }
}
