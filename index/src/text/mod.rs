//! The text index: follows the store, answers searches, can always be rebuilt (invariant I3).
//!
//! Written by one long-lived tantivy writer that follows the tail (or the store, when it fell behind) and commits in
//! batches with the seq it reached as payload. Read by [`crate::search`].

pub mod columns;
pub mod document;
pub mod follower;
pub mod tokens;

use crate::{Error, IndexOptions};
use columns::Columns;
use std::path::Path;
use std::sync::Arc;
use tantivy::directory::MmapDirectory;
use tantivy::indexer::LogMergePolicy;
use tantivy::{Index as TantivyIndex, IndexReader, IndexSettings, IndexWriter, ReloadPolicy};

/// Changes with the schema or the tokens: an index of another version is rebuilt.
const VERSION: u32 = 1;

/// The index's folder in the data directory.
pub const FOLDER: &str = "text";

/// The opened index with its reader.
pub struct TextIndex {
    pub columns: Columns,
    pub reader: IndexReader,
    index: TantivyIndex,
}

impl std::fmt::Debug for TextIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TextIndex")
    }
}

/// What a commit carries: whose changes, up to where.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Payload {
    pub version: u32,
    /// Of the store.
    pub identity: String,
    pub seq: u64,
}

/// What a look at an index finds.
pub struct Looked {
    pub payload: Payload,
    /// Counted only in a sound index.
    pub documents: u64,
    /// Files whose checksums are wrong.
    pub damaged: Vec<std::path::PathBuf>,
}

impl TextIndex {
    /// Opens the index in `<data_dir>/text`, starting over when it belongs to another store or version, or stopped
    /// before deletions the store no longer tells (`pruned`).
    pub fn open(options: &IndexOptions, identity: &str, pruned: u64) -> Result<(Arc<Self>, Payload), Error> {
        let path = options.data_dir.join(FOLDER);
        let fresh = Payload { version: VERSION, identity: identity.to_owned(), seq: 0 };
        if let Some((index, payload)) = Self::existing(&path)?
            && payload.version == VERSION
            && payload.identity == identity
            && payload.seq >= pruned
        {
            return Ok((Arc::new(Self::with(index)?), payload));
        }
        if path.exists() {
            tracing::info!(path = %path.display(), "the text index is rebuilt from the store");
            std::fs::remove_dir_all(&path).map_err(|source| Error::Io { path: path.display().to_string(), source })?;
        }
        std::fs::create_dir_all(&path).map_err(|source| Error::Io { path: path.display().to_string(), source })?;
        let directory = MmapDirectory::open(&path).map_err(|e| Error::text("cannot open its directory", e.into()))?;
        let settings = IndexSettings { docstore_compress_dedicated_thread: false, ..IndexSettings::default() };
        let index = TantivyIndex::create(directory, Columns::schema(), settings)
            .map_err(|e| Error::text("cannot be created", e))?;
        Ok((Arc::new(Self::with(index)?), fresh))
    }

    /// Reads an index without using it; None where there is none that can be used.
    pub fn look(data_dir: &Path) -> Result<Option<Looked>, Error> {
        let Some((index, payload)) = Self::existing(&data_dir.join(FOLDER))? else { return Ok(None) };
        let fail = |e| Error::text("cannot be checked", e);
        let damaged = index.validate_checksum().map_err(fail)?;
        let documents = if damaged.is_empty() { index.reader().map_err(fail)?.searcher().num_docs() } else { 0 };
        Ok(Some(Looked { payload, documents, damaged: damaged.into_iter().collect() }))
    }

    /// In memory, for tests.
    pub fn in_memory() -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self::with(TantivyIndex::create_in_ram(Columns::schema()))?))
    }

    fn existing(path: &Path) -> Result<Option<(TantivyIndex, Payload)>, Error> {
        if !path.join("meta.json").exists() {
            return Ok(None);
        }
        // Damage is no reason to stop: everything in it can be made again.
        let Ok(index) = TantivyIndex::open_in_dir(path) else { return Ok(None) };
        let Ok(meta) = index.load_metas() else { return Ok(None) };
        let payload = meta.payload.and_then(|payload| serde_json::from_str(&payload).ok());
        Ok(payload.map(|payload| (index, payload)))
    }

    fn with(index: TantivyIndex) -> Result<Self, Error> {
        tokens::register(index.tokenizers());
        let reader = index
            .reader_builder()
            .reload_policy(ReloadPolicy::Manual)
            .try_into()
            .map_err(|e| Error::text("cannot be read", e))?;
        let columns = Columns::of(&index.schema()).map_err(|e| Error::text("has another schema", e))?;
        Ok(Self { columns, reader, index })
    }

    /// The one writer.
    pub fn writer(&self, heap_bytes: usize) -> Result<IndexWriter, Error> {
        let writer = self
            .index
            .writer_with_num_threads(1, heap_bytes.max(15_000_000))
            .map_err(|e| Error::text("cannot be written: is another process using it?", e))?;
        let mut policy = LogMergePolicy::default();
        policy.set_min_num_segments(6);
        policy.set_min_layer_size(5_000);
        // Every update is a delete and an add: without this, segments of deleted documents stay for ever.
        policy.set_del_docs_ratio_before_merge(0.2);
        writer.set_merge_policy(Box::new(policy));
        // Whoever was killed during a commit left files of it; made again under the same names they would be refused.
        writer.garbage_collect_files().wait().map_err(|e| Error::text("cannot be tidied", e))?;
        Ok(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::stored;
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
    fn a_commit_cut_short_is_made_again() {
        let directory = tempfile::tempdir().unwrap();
        let options = IndexOptions::new(directory.path());
        let meta = directory.path().join("text/meta.json");
        let delete = |text: &TextIndex| {
            change(text, |writer| {
                writer.delete_term(Term::from_field_u64(text.columns.id, 1));
            });
        };
        let (text, _) = TextIndex::open(&options, "x", 0).unwrap();
        change(&text, |writer| {
            // Enough that one of them is no reason to merge.
            for id in 1..=20 {
                let pod = json!({"kind": "Pod", "metadata": {"name": format!("pod-{id}"), "namespace": "a"}});
                let document = document::Document::of(&stored("member1", id, &pod));
                writer.add_document(document.to_tantivy(&text.columns)).unwrap();
            }
        });
        let before = std::fs::read(&meta).unwrap();
        delete(&text);
        // Killed before the last file of the commit was written.
        drop(text);
        std::fs::write(&meta, before).unwrap();
        let (text, payload) = TextIndex::open(&options, "x", 0).unwrap();
        assert_eq!((payload.seq, text.reader.searcher().num_docs()), (1, 20));
        delete(&text);
        text.reader.reload().unwrap();
        assert_eq!(text.reader.searcher().num_docs(), 19);
    }
}
