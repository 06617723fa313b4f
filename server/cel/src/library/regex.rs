//! `matches`, `find` and `findAll` with patterns in the syntax of Go's `regexp`.

use std::sync::Arc;

use crowsnest_apiserver::regexp;
use crowsnest_schema::go_regexp_errors;
use kube::core::cel::cel::extractors::{Arguments, This};
use kube::core::cel::cel::{Context, ExecutionError, Value as Cel};
use regex::Regex;

use super::Outcome;

pub(super) fn register(context: &mut Context<'_>) {
    context.add_function("matches", |This(text): This<Arc<String>>, pattern: Arc<String>| -> Outcome {
        Ok(Cel::Bool(compile_pattern("matches", &pattern)?.is_match(&text)))
    });
    context.add_function("find", |This(text): This<Arc<String>>, pattern: Arc<String>| -> Outcome {
        let found = compile_pattern("find", &pattern)?.find(&text).map(|found| found.as_str().to_owned());
        Ok(Cel::String(Arc::new(found.unwrap_or_default())))
    });
    context.add_function("findAll", find_all);
}

/// `text.findAll(pattern[, limit])`; a negative limit means no limit.
fn find_all(This(text): This<Arc<String>>, Arguments(args): Arguments) -> Outcome {
    let limit = match (args.first(), args.get(1)) {
        (Some(Cel::String(_)), None) => usize::MAX,
        (Some(Cel::String(_)), Some(Cel::Int(limit))) => usize::try_from(*limit).unwrap_or(usize::MAX),
        _ => return Err(ExecutionError::NoSuchOverload),
    };
    let Some(Cel::String(pattern)) = args.first() else { return Err(ExecutionError::NoSuchOverload) };
    let pattern = compile_pattern("findAll", pattern)?;
    let found = pattern.find_iter(&text).take(limit).map(|found| Cel::String(Arc::new(found.as_str().to_owned())));
    Ok(Cel::List(Arc::new(found.collect())))
}

fn compile_pattern(function: &str, pattern: &str) -> Result<Regex, ExecutionError> {
    regexp::compile(pattern).map_err(|error| {
        let reason = go_regexp_errors::pattern_error(pattern).unwrap_or_else(|| error.to_string());
        ExecutionError::function_error(function, reason)
    })
}
