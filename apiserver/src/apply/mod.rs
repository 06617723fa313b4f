//! Server-side apply: fieldsV1 sets, managedFields, merge and conflicts.
