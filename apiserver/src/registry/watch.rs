//! Watch: the initial state when asked for, then changes with selectors applied to both sides of each.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::error::Error;
use crate::registry::list::{check_fields, matches, parse_version};
use crate::registry::options::ListOptions;
use crate::registry::resource::ResourceRef;
use crate::registry::{Registry, storage_error, table};
use crate::status::{ApiError, ApiResult};
use crate::storage::{Change, ChangeKind, Record, Revision, Watcher};

/// Between two periodic bookmarks.
const BOOKMARKS: Duration = Duration::from_secs(60);
/// Initial events decoded at once.
const CHUNK: usize = 500;

/// One watch event on its way to the client.
#[derive(Debug)]
pub enum Emitted {
    Object {
        event: &'static str,
        object: Value,
    },
    /// A whole event line, shared with other watchers.
    Encoded(Arc<Vec<u8>>),
    Error(ApiError),
}

/// A running watch.
pub struct Watch {
    registry: Arc<Registry>,
    resource: ResourceRef,
    namespace: String,
    options: ListOptions,
    /// Events may be passed on as stored.
    plain: bool,
    representation: Arc<str>,
    initial: std::vec::IntoIter<Record>,
    initial_end: Option<Revision>,
    watcher: Watcher,
    next_bookmark: Instant,
    /// Why the watch ends before its first event.
    refused: Option<ApiError>,
    ended: bool,
}

impl Registry {
    /// Starts a watch. `plain` tells that the client takes objects as they are (no table, no partial metadata).
    pub async fn watch(
        self: &Arc<Self>,
        resource: &ResourceRef,
        namespace: &str,
        options: ListOptions,
        plain: bool,
    ) -> ApiResult<Watch> {
        check_fields(resource, &options.fields)?;
        let requested = parse_version(&options.resource_version)?;
        let initial = match options.send_initial_events {
            Some(wanted) => wanted,
            None => requested == 0,
        };
        let (records, since, initial_end) = if initial {
            self.reach(requested).await?;
            let listing =
                self.store.list(&table(resource), namespace, None, None, usize::MAX).map_err(storage_error)?;
            let end = (options.send_initial_events == Some(true) && options.bookmarks).then_some(listing.revision);
            (listing.records, listing.revision, end)
        } else {
            let since = if requested == 0 { self.store.revision() } else { requested };
            (Vec::new(), since, None)
        };
        let floor = resource.strategy.history_floor();
        let mut refused =
            (!initial && since < floor).then(|| storage_error(Error::Expired { requested: since, oldest: floor }));
        // A version from before the kept history is told in the stream, as clients expect it.
        let watcher = match self.store.watch(&table(resource), since) {
            Ok(watcher) => watcher,
            Err(expired @ Error::Expired { .. }) => {
                refused = Some(storage_error(expired));
                self.store.watch(&table(resource), self.store.revision()).map_err(storage_error)?
            }
            Err(error) => return Err(storage_error(error)),
        };
        let plain = plain && options.labels.is_everything() && options.fields.is_everything();
        Ok(Watch {
            registry: self.clone(),
            resource: resource.clone(),
            namespace: namespace.to_owned(),
            plain,
            representation: resource.gvr.api_version().into(),
            initial: records.into_iter(),
            initial_end,
            watcher,
            options,
            next_bookmark: Instant::now() + BOOKMARKS,
            refused,
            ended: false,
        })
    }
}

impl Watch {
    /// The next events; `None` after an error ended the watch. May return an empty batch.
    pub async fn next(&mut self) -> Option<Vec<Emitted>> {
        if self.ended {
            return None;
        }
        if let Some(error) = self.refused.take() {
            self.ended = true;
            return Some(vec![Emitted::Error(error)]);
        }
        let batch = match self.step().await {
            Ok(batch) => batch,
            Err(Error::Closed) => {
                self.ended = true;
                return None;
            }
            Err(error) => {
                self.ended = true;
                vec![Emitted::Error(storage_error(error))]
            }
        };
        Some(batch)
    }

    /// The bookmark a watch sends before it times out.
    pub fn last_bookmark(&mut self) -> Option<Emitted> {
        (self.options.bookmarks && !self.ended).then(|| {
            let position = self.watcher.position();
            self.bookmark(position, false)
        })
    }

    async fn step(&mut self) -> Result<Vec<Emitted>, Error> {
        let records: Vec<Record> = self.initial.by_ref().take(CHUNK).collect();
        if !records.is_empty() {
            return Ok(self.initial_events(records).await?);
        }
        if let Some(revision) = self.initial_end.take() {
            return Ok(vec![self.bookmark(revision, true)]);
        }
        if !self.options.bookmarks {
            let changes = self.watcher.next().await?;
            return self.events(changes).await;
        }
        match tokio::time::timeout_at(self.next_bookmark, self.watcher.next()).await {
            Ok(changes) => self.events(changes?).await,
            Err(_) => {
                self.next_bookmark = Instant::now() + BOOKMARKS;
                let position = self.watcher.position();
                Ok(vec![self.bookmark(position, false)])
            }
        }
    }

    async fn initial_events(&self, records: Vec<Record>) -> ApiResult<Vec<Emitted>> {
        let objects = self.registry.decode_all(&self.resource, records).await?;
        Ok(objects
            .into_iter()
            .filter(|object| matches(&self.resource, &self.options, object))
            .map(|object| Emitted::Object { event: "ADDED", object })
            .collect())
    }

    async fn events(&self, changes: Vec<Arc<Change>>) -> Result<Vec<Emitted>, Error> {
        let mut out = Vec::with_capacity(changes.len());
        for change in changes {
            if !self.namespace.is_empty() && change.key.namespace() != self.namespace {
                continue;
            }
            if self.plain && change.body.api_version() == &*self.representation {
                out.push(Emitted::Encoded(self.encoded(&change)?));
            } else {
                out.extend(self.selected(&change).await?);
            }
        }
        Ok(out)
    }

    /// The line of a change, encoded once for everybody who watches it unchanged.
    fn encoded(&self, change: &Arc<Change>) -> Result<Arc<Vec<u8>>, Error> {
        if let Some(line) = change.shared(&self.representation) {
            return Ok(line);
        }
        let mut line = Vec::with_capacity(256);
        line.extend_from_slice(b"{\"type\":\"");
        line.extend_from_slice(event_name(change.kind).as_bytes());
        line.extend_from_slice(b"\",\"object\":");
        change.body.write_json(&mut line, change.revision, true)?;
        line.extend_from_slice(b"}\n");
        let line = Arc::new(line);
        change.share(&self.representation, &line);
        Ok(line)
    }

    /// What a change means to a watch with selectors: objects enter and leave its view.
    async fn selected(&self, change: &Change) -> ApiResult<Option<Emitted>> {
        let decode = async |revision: Revision, body: &crate::storage::Body| {
            let record = Record { key: change.key.clone(), revision, body: body.clone() };
            self.registry.decode(&self.resource, record).await
        };
        let wants = |object: &Value| matches(&self.resource, &self.options, object);
        if !self.concerns(change)? {
            return Ok(None);
        }
        let everything = self.options.labels.is_everything() && self.options.fields.is_everything();
        let before = match &change.previous {
            Some((_, body)) if !everything => Some(decode(change.revision, body).await?),
            _ => None,
        };
        let was_in = change.previous.is_some() && before.as_ref().is_none_or(&wants);
        if change.kind == ChangeKind::Deleted {
            let last = decode(change.revision, &change.body).await?;
            return Ok(was_in.then_some(Emitted::Object { event: "DELETED", object: last }));
        }
        let object = decode(change.revision, &change.body).await?;
        Ok(match (was_in, wants(&object)) {
            (false, true) => Some(Emitted::Object { event: "ADDED", object }),
            (true, true) => Some(Emitted::Object { event: "MODIFIED", object }),
            (true, false) => before.map(|object| Emitted::Object { event: "DELETED", object }),
            (false, false) => None,
        })
    }

    /// False when neither side of the change can be in view, told from labels and key alone.
    fn concerns(&self, change: &Change) -> ApiResult<bool> {
        if self.options.fields.exact("metadata.name").is_some_and(|name| name != change.key.name()) {
            return Ok(false);
        }
        if self.options.labels.is_everything() {
            return Ok(true);
        }
        let selected = |body: &crate::storage::Body| {
            let labels = body.labels().map_err(storage_error)?;
            Ok::<_, ApiError>(self.options.labels.matches(labels.as_ref()))
        };
        Ok(selected(&change.body)? || change.previous.as_ref().map_or(Ok(false), |(_, body)| selected(body))?)
    }

    fn bookmark(&self, revision: Revision, initial_end: bool) -> Emitted {
        let mut object = json!({
            "kind": self.resource.kind, "apiVersion": self.resource.gvr.api_version(),
            "metadata": {"resourceVersion": revision.to_string()},
        });
        if initial_end {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        Emitted::Object { event: "BOOKMARK", object }
    }
}

fn event_name(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Added => "ADDED",
        ChangeKind::Modified => "MODIFIED",
        ChangeKind::Deleted => "DELETED",
    }
}
