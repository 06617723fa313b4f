//! Opens the backend: the client, the writer that follows the store, and the engine that searches.

use super::follow::{ProgressFollower, close_all};
use super::index_cache::SearchIndexCache;
use super::{EXAMINATION_CACHE_SIZE, OpenSearchEngine};
use crate::engine::{EngineContext, EngineHandle};
use crate::execute::examine::Examiner;
use crate::opensearch::client::{Client, ClientOptions};
use crate::opensearch::source::StoreSource;
use crate::opensearch::template::{IndexSize, template};
use crate::opensearch::writer::{Writer, WriterOptions};
use crowsnest_store::{Error, OpenSearchOptions};
use lru::LruCache;
use parking_lot::Mutex;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// Maximum number of points in time that wait to be closed.
const CLOSE_QUEUE_LENGTH: usize = 256;

/// Sets up the backend. Sends no request; the worker waits for an unreachable engine.
pub(super) async fn open(context: EngineContext<'_>) -> Result<EngineHandle, Error> {
    let EngineContext { options, identity, store, tail, states, metrics, permits, committed, elected, stop, .. } =
        context;
    let client = Arc::new(Client::new(ClientOptions::from_store_options(&options.opensearch)?).await?);
    let alias = options.opensearch.index_prefix.clone();
    let examiner = Examiner { store: Arc::clone(&store), permits };
    let source = StoreSource { store, tail: Arc::clone(&tail), identity: identity.to_owned() };
    let writer_options = WriterOptions { elected, ..WriterOptions::new(&alias, index_template(&options.opensearch)) };
    let writer = Arc::new(Writer::new(Arc::clone(&client), source, writer_options));
    let (searchable, searchable_receiver) = watch::channel(crowsnest_store::Seq(0));
    let (write_failure, write_failure_receiver) = watch::channel(None);
    let (size, size_receiver) = watch::channel(None);
    let (close_sender, close_receiver) = mpsc::channel(CLOSE_QUEUE_LENGTH);
    let follower = ProgressFollower {
        writer: Arc::clone(&writer),
        client: Arc::clone(&client),
        alias,
        tail,
        metrics: Arc::clone(&metrics),
        committed,
        searchable,
        write_failure,
        size,
        interval: options.text_commit_interval,
    };
    let engine = OpenSearchEngine {
        client: Arc::clone(&client),
        index_cache: SearchIndexCache::new(Arc::clone(&writer)),
        states,
        searchable: searchable_receiver,
        write_failure: write_failure_receiver,
        close_sender,
        writer: Arc::clone(&writer),
        size: size_receiver,
        metrics,
        examiner,
        examination_cache: Mutex::new(LruCache::new(EXAMINATION_CACHE_SIZE)),
    };
    let worker = async move {
        let closer = close_all(client, close_receiver, stop.clone());
        tokio::join!(writer.run(stop.clone()), follower.run(stop), closer);
        Ok(())
    };
    Ok(EngineHandle { engine: Arc::new(engine), worker: Box::pin(worker) })
}

fn index_template(options: &OpenSearchOptions) -> Value {
    let size = IndexSize { shards: options.shards, replicas: options.replicas.unwrap_or(0) };
    let mut template = template(size);
    if options.replicas.is_none() {
        template["settings"]["index"]["auto_expand_replicas"] = "0-1".into();
    }
    template
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::defaults(1, None, json!([1, 0, "0-1"]))]
    #[case::chosen(3, Some(2), json!([3, 2, null]))]
    #[case::no_copies(1, Some(0), json!([1, 0, null]))]
    fn shards_are_those_of_the_options(#[case] shards: u32, #[case] replicas: Option<u32>, #[case] expected: Value) {
        let template = index_template(&OpenSearchOptions { shards, replicas, ..OpenSearchOptions::default() });
        let index = &template["settings"]["index"];
        let found = json!([index["number_of_shards"], index["number_of_replicas"], index["auto_expand_replicas"]]);
        assert_eq!(found, expected);
    }
}
