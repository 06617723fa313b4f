//! Journal in a SQLite file (WAL mode), locked against other processes.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use futures::TryStreamExt;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{Connection, Executor, QueryBuilder, Row, Sqlite};

use crate::error::{Error, Result};
use crate::storage::journal::{Entry, Journal, Snapshot};
use crate::storage::{Body, ObjectKey, ResourceKey, Revision};

/// Version of the file layout, stored in `PRAGMA user_version`.
const LAYOUT_VERSION: i64 = 1;
/// Maximum number of rows per INSERT; with four parameters each, far below SQLite's limit. A power of two, see
/// [`insert_rows`].
const MAX_ROWS_PER_INSERT: usize = 128;
/// Number of pages in the write-ahead log that triggers a checkpoint: SQLite's default.
const CHECKPOINT_PAGES: u32 = 1000;

const CREATE_SCHEMA: &str = "
CREATE TABLE objects (
  resource TEXT NOT NULL,
  key TEXT NOT NULL,
  revision INTEGER NOT NULL,
  body BLOB NOT NULL,
  PRIMARY KEY (resource, key)
);
CREATE TABLE position (id INTEGER PRIMARY KEY CHECK (id = 0), revision INTEGER NOT NULL);
INSERT INTO position VALUES (0, 1);
PRAGMA user_version = 1;
";

/// Failure that acknowledged writes survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Power failure: each group of writes is flushed to the disk.
    #[default]
    Power,
    /// Crash of the process, but not of the machine. For simulated members.
    Process,
}

/// A journal in `objects.db`.
#[derive(Debug)]
pub struct SqliteJournal {
    connection: SqliteConnection,
    _lock: File,
}

impl SqliteJournal {
    /// Opens or creates `directory/objects.db`.
    pub async fn open(directory: &Path, durability: Durability) -> Result<Self> {
        Self::open_with_checkpoint_pages(directory, durability, CHECKPOINT_PAGES).await
    }

    /// Like `open`, with the number of log pages that trigger a checkpoint.
    pub(super) async fn open_with_checkpoint_pages(
        directory: &Path,
        durability: Durability,
        pages: u32,
    ) -> Result<Self> {
        let io = |path: PathBuf| move |source| Error::Io { path, source };
        std::fs::create_dir_all(directory).map_err(io(directory.to_owned()))?;
        let lock_path = directory.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(io(lock_path.clone()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::Locked { path: directory.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(Error::Io { path: lock_path, source }),
        }
        let options = SqliteConnectOptions::new()
            .filename(directory.join("objects.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .pragma("wal_autocheckpoint", pages.to_string())
            .synchronous(match durability {
                Durability::Power => SqliteSynchronous::Full,
                Durability::Process => SqliteSynchronous::Normal,
            });
        let mut connection = SqliteConnection::connect_with(&options).await?;
        let found: i64 = sqlx::query_scalar("PRAGMA user_version").fetch_one(&mut connection).await?;
        match found {
            0 => {
                let mut transaction = connection.begin().await?;
                (&mut *transaction).execute(CREATE_SCHEMA).await?;
                transaction.commit().await?;
            }
            LAYOUT_VERSION => {}
            newer => {
                return Err(Error::NewerData { path: directory.to_owned(), found: newer, supported: LAYOUT_VERSION });
            }
        }
        Ok(Self { connection, _lock: lock })
    }
}

#[async_trait]
impl Journal for SqliteJournal {
    async fn load(&mut self) -> Result<Snapshot> {
        let revision: i64 = sqlx::query_scalar("SELECT revision FROM position").fetch_one(&mut self.connection).await?;
        let mut objects = Vec::new();
        let mut rows = sqlx::query("SELECT resource, key, revision, body FROM objects").fetch(&mut self.connection);
        while let Some(row) = rows.try_next().await? {
            let body: Vec<u8> = row.try_get(3)?;
            objects.push((
                ResourceKey::from_stored(row.try_get(0)?),
                ObjectKey::from_stored(row.try_get(1)?),
                row.try_get::<i64, _>(2)? as Revision,
                Body::from_stored(body)?,
            ));
        }
        Ok(Snapshot { revision: revision as Revision, objects })
    }

    async fn commit(&mut self, entries: &[Entry], revision: Revision) -> Result<()> {
        let mut transaction = self.connection.begin().await?;
        let mut puts: Vec<(&Entry, &Body)> = Vec::new();
        for entry in entries {
            match &entry.body {
                Some(body) => puts.push((entry, body)),
                None => {
                    // Preserves the order of writes to one key in a group.
                    insert_rows(&mut transaction, &mut puts).await?;
                    sqlx::query("DELETE FROM objects WHERE resource = ? AND key = ?")
                        .bind(entry.table.as_str())
                        .bind(entry.key.as_str())
                        .execute(&mut *transaction)
                        .await?;
                }
            }
        }
        insert_rows(&mut transaction, &mut puts).await?;
        sqlx::query("UPDATE position SET revision = ?").bind(revision as i64).execute(&mut *transaction).await?;
        Ok(transaction.commit().await?)
    }

    async fn close(mut self: Box<Self>) -> Result<()> {
        (&mut self.connection).execute("PRAGMA wal_checkpoint(TRUNCATE)").await?;
        Ok(self.connection.close().await?)
    }
}

/// Writes rows in chunks whose sizes are powers of two, so that the few distinct statements stay prepared.
async fn insert_rows(connection: &mut SqliteConnection, puts: &mut Vec<(&Entry, &Body)>) -> Result<()> {
    let mut remaining = puts.as_slice();
    while !remaining.is_empty() {
        let size = (1 << remaining.len().ilog2()).min(MAX_ROWS_PER_INSERT);
        let (rows, rest) = remaining.split_at(size);
        remaining = rest;
        let mut query: QueryBuilder<Sqlite> = QueryBuilder::new("INSERT INTO objects (resource, key, revision, body) ");
        query.push_values(rows, |mut row, (entry, body)| {
            row.push_bind(entry.table.as_str())
                .push_bind(entry.key.as_str())
                .push_bind(entry.revision as i64)
                .push_bind(&body.as_stored()[..]);
        });
        query.push(" ON CONFLICT (resource, key) DO UPDATE SET revision = excluded.revision, body = excluded.body");
        query.build().execute(&mut *connection).await?;
    }
    puts.clear();
    Ok(())
}
