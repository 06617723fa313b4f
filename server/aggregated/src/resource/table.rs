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
    /// True for the version `meta.k8s.io/v1beta1`.
    is_v1beta1: bool,
}

impl TableRequest {
    /// Parses the parameter `includeObject`. Without `columns`, the table has the columns of all kinds. `is_v1beta1`
    /// selects the version `meta.k8s.io/v1beta1`.
    pub fn parse(columns: Option<&'static KindPrinter>, is_v1beta1: bool, query: &Query) -> Result<Self, ApiError> {
        let include = IncludeObject::parse(query.get("includeObject").unwrap_or_default())?;
        let printer = columns.map_or(Printer::Generic, Printer::BuiltIn);
        Ok(Self { printer, include, is_v1beta1 })
    }

    /// Converts an object or a list to a table.
    pub fn convert(&self, value: &Value, now: Now) -> Value {
        let meta = ListMeta::from_object(value);
        let single_object = std::slice::from_ref(value);
        let objects = value.get("items").and_then(Value::as_array).map_or(single_object, Vec::as_slice);
        self.build(Some(self.columns()), objects, &meta, now)
    }

    /// Converts the object of a watch event. Only the first event of a watch contains the columns.
    pub fn convert_event(&self, object: &Value, is_first: bool, now: Now) -> Value {
        let columns = is_first.then(|| self.columns());
        self.build(columns, std::slice::from_ref(object), &ListMeta::from_object(object), now)
    }

    fn build(&self, columns: Option<Vec<Value>>, objects: &[Value], meta: &ListMeta, now: Now) -> Value {
        let rows = Rows {
            printer: &self.printer,
            include_object: self.include,
            now,
            // Objects of these groups have one version.
            to_internal: |object| Cow::Borrowed(object),
        };
        let mut table = rows.table(columns, objects, meta);
        if self.is_v1beta1 {
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
    fn tables_have_the_accepted_version(#[case] is_v1beta1: bool, #[case] expected: &str) {
        let request = TableRequest::parse(None, is_v1beta1, &Query::parse(None)).unwrap();
        let list = json!({"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "m1"}}]});
        let now = jiff::Timestamp::UNIX_EPOCH;
        for table in [request.convert(&list, now), request.convert_event(&list["items"][0], true, now)] {
            let object = &table["rows"][0]["object"];
            assert_eq!((&table["kind"], &object["kind"]), (&json!("Table"), &json!("PartialObjectMetadata")));
            assert_eq!((&table["apiVersion"], &object["apiVersion"]), (&json!(expected), &json!(expected)));
        }
    }

    #[rstest::rstest]
    #[case::page(json!({"resourceVersion": "7", "continue": "t", "remainingItemCount": 3}))]
    #[case::last_page(json!({"resourceVersion": "7"}))]
    fn tables_keep_the_metadata_of_lists(#[case] metadata: Value) {
        let request = TableRequest::parse(None, false, &Query::parse(None)).unwrap();
        let list = json!({"metadata": metadata, "items": []});
        assert_eq!(request.convert(&list, jiff::Timestamp::UNIX_EPOCH)["metadata"], metadata);
    }
}
