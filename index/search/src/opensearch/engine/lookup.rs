//! Ids and keys of all matching documents, read page by page in the order of their ids.

use super::{Condition, Failure, OpenSearchEngine, partial_notices, timeout};
use crate::document::columns::Key;
use crate::engine::{Lookup, MAX_LOOKUP_VALUES, SearchContext};
use crate::opensearch::fields::{self, ID};
use crate::opensearch::request::MAX_PAGE;
use crate::opensearch::response::{EngineHit, Page, ResponseError};
use crate::plan::predicate::Match;
use crowsnest_store::Error;
use serde_json::{Value, json};

impl OpenSearchEngine {
    /// Ids of the matching objects, or the keys in these columns.
    pub(super) async fn lookup(
        &self,
        context: &SearchContext,
        matches: &Match,
        columns: Option<&[Key]>,
    ) -> Result<Lookup, Error> {
        let mut lookup = Lookup::default();
        let read = match self.condition(context, matches).await {
            Ok(condition) => self.read_all(context, condition, columns, &mut lookup).await,
            Err(failure) => Err(failure),
        };
        if let Err(failure) = read {
            lookup.incomplete = true;
            lookup.notices.insert(failure.into_notice()?);
        }
        Ok(lookup)
    }

    pub(super) async fn read_all(
        &self,
        context: &SearchContext,
        condition: Condition,
        columns: Option<&[Key]>,
        lookup: &mut Lookup,
    ) -> Result<(), Failure> {
        let filter = condition.filter();
        lookup.incomplete |= condition.incomplete;
        lookup.notices.extend(condition.notices);
        let names: Option<Vec<String>> = columns.map(|columns| columns.iter().map(|key| fields::key(*key)).collect());
        let mut after: Option<Value> = None;
        loop {
            let mut body = json!({
                "query": filter,
                "sort": [{ID: "asc"}],
                "size": MAX_PAGE,
                "track_total_hits": false,
                "_source": false,
                "timeout": format!("{}ms", timeout(context.deadline).as_millis().max(1)),
            });
            if let Some(names) = &names {
                body["docvalue_fields"] = names.as_slice().into();
            }
            if let Some(after) = after.take() {
                body["search_after"] = json!([after]);
            }
            let page = Page::parse(&self.search(&Self::path(&filter), &body, context.deadline).await?)?;
            lookup.incomplete |= !page.partial.is_empty();
            lookup.notices.extend(partial_notices(&page.partial));
            for hit in &page.hits {
                match names {
                    Some(_) => lookup.values.extend(hit.fields.values().flatten().map(|key| key.cast_unsigned())),
                    None => lookup.values.extend([id(hit)?]),
                }
            }
            if page.hits.len() < MAX_PAGE {
                return Ok(());
            }
            if lookup.values.len() >= MAX_LOOKUP_VALUES {
                lookup.incomplete = true;
                return Ok(());
            }
            after = page.hits.last().and_then(|hit| hit.sort.first().cloned());
        }
    }
}

fn id(hit: &EngineHit) -> Result<u64, Failure> {
    let id = hit.sort.first().and_then(Value::as_i64);
    Ok(id.ok_or(ResponseError::Missing("the id of a hit"))?.cast_unsigned())
}
