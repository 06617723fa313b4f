//! Tables of the aggregated groups.

use std::borrow::Cow;

use crowsnest_apimachinery::printers::columns::KindPrinter;
use crowsnest_apimachinery::request::Query;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_schema::table::{IncludeObject, ListMeta, Now, Printer, Rows, field_description, to_v1beta1};
use serde_json::Value;

/// A requested table.
pub struct TableRequest {
    printer: Printer,
    include: IncludeObject,
    /// In `meta.k8s.io/v1beta1`.
    beta: bool,
}

impl TableRequest {
    /// Reads `includeObject`. Without columns, a table has those of every object. `beta`: in `meta.k8s.io/v1beta1`.
    pub fn parse(columns: Option<&'static KindPrinter>, beta: bool, query: &Query) -> Result<Self, ApiError> {
        let include = IncludeObject::parse(query.get("includeObject").unwrap_or_default())?;
        let printer = columns.map_or(Printer::Generic, Printer::BuiltIn);
        Ok(Self { printer, include, beta })
    }

    /// One object or a list as a table.
    pub fn whole(&self, value: &Value, now: Now) -> Value {
        let meta = ListMeta::of(value);
        let one = std::slice::from_ref(value);
        let objects = value.get("items").and_then(Value::as_array).map_or(one, Vec::as_slice);
        self.table(Some(self.columns()), objects, &meta, now)
    }

    /// A watched object; only the first event repeats the columns.
    pub fn event(&self, object: &Value, first: bool, now: Now) -> Value {
        let columns = first.then(|| self.columns());
        self.table(columns, std::slice::from_ref(object), &ListMeta::of(object), now)
    }

    fn table(&self, columns: Option<Vec<Value>>, objects: &[Value], meta: &ListMeta, now: Now) -> Value {
        let rows = Rows {
            printer: &self.printer,
            include: self.include,
            now,
            // Objects of these groups have one version.
            internal: |object| Cow::Borrowed(object),
        };
        let mut table = rows.table(columns, objects, meta);
        if self.beta {
            to_v1beta1(&mut table);
        }
        table
    }

    fn columns(&self) -> Vec<Value> {
        self.printer.columns(&field_description)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[rstest::rstest]
    #[case::current(false, "meta.k8s.io/v1")]
    #[case::earlier(true, "meta.k8s.io/v1beta1")]
    fn tables_have_the_accepted_version(#[case] beta: bool, #[case] expected: &str) {
        let request = TableRequest::parse(None, beta, &Query::parse(None)).unwrap();
        let list = json!({"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "m1"}}]});
        let now = jiff::Timestamp::UNIX_EPOCH;
        for table in [request.whole(&list, now), request.event(&list["items"][0], true, now)] {
            let object = &table["rows"][0]["object"];
            assert_eq!((&table["kind"], &object["kind"]), (&json!("Table"), &json!("PartialObjectMetadata")));
            assert_eq!((&table["apiVersion"], &object["apiVersion"]), (&json!(expected), &json!(expected)));
        }
    }

    #[rstest::rstest]
    #[case::page(json!({"resourceVersion": "7", "continue": "t", "remainingItemCount": 3}))]
    #[case::last_page(json!({"resourceVersion": "7"}))]
    fn tables_of_lists_continue(#[case] metadata: Value) {
        let request = TableRequest::parse(None, false, &Query::parse(None)).unwrap();
        let list = json!({"metadata": metadata, "items": []});
        assert_eq!(request.whole(&list, jiff::Timestamp::UNIX_EPOCH)["metadata"], metadata);
    }
}
