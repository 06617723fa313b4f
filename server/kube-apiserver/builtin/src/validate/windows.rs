//! Validation of `securityContext.windowsOptions`: credentials and user names.

use super::{Errors, Value, at, is_set, text, validate_dns1123_subdomain};

const MAX_CREDENTIAL_KIB: usize = 64;
const MAX_DOMAIN_LENGTH: usize = 256;
const MAX_USER_LENGTH: usize = 104;
/// Characters that Windows user names cannot contain.
const FORBIDDEN: &str = r#""/\:;|=,+*?<>@[]"#;

pub(super) fn validate_windows_options(e: &mut Errors, context: &Value, path: &str) {
    let (options, path) = (at(context, "windowsOptions"), format!("{path}.windowsOptions"));
    if options.is_null() {
        return;
    }
    if is_set(options, "gmsaCredentialSpecName") {
        let name = text(options, "gmsaCredentialSpecName");
        e.push_name_errors(&format!("{path}.gmsaCredentialSpecName"), name, validate_dns1123_subdomain(name));
    }
    if let Some(credential) = at(options, "gmsaCredentialSpec").as_str() {
        let field = format!("{path}.gmsaCredentialSpec");
        if credential.is_empty() {
            e.invalid(field, at(options, "gmsaCredentialSpec"), "gmsaCredentialSpec cannot be an empty string");
        } else if credential.len() > MAX_CREDENTIAL_KIB * 1024 {
            let reason = format!("gmsaCredentialSpec size must be under {MAX_CREDENTIAL_KIB} KiB");
            e.invalid(field, at(options, "gmsaCredentialSpec"), reason);
        }
    }
    if let Some(name) = at(options, "runAsUserName").as_str() {
        for reason in user_name_errors(name) {
            e.invalid(format!("{path}.runAsUserName"), at(options, "runAsUserName"), reason);
        }
    }
}

/// Validates `DOMAIN\USER` or `USER`.
fn user_name_errors(name: &str) -> Vec<String> {
    let only = |reason: &str| vec![reason.to_owned()];
    if name.is_empty() {
        return only("runAsUserName cannot be an empty string");
    }
    if name.chars().any(|c| c.is_ascii_control()) {
        return only("runAsUserName cannot contain control characters");
    }
    let (domain, user) = match name.split('\\').collect::<Vec<_>>().as_slice() {
        [user] => (None, *user),
        [domain, user] => (Some(*domain), *user),
        _ => return only("runAsUserName cannot contain more than one backslash"),
    };
    let mut wrong = Vec::new();
    if let Some(domain) = domain {
        if domain.len() >= MAX_DOMAIN_LENGTH {
            wrong.push(format!("runAsUserName's Domain length must be under {MAX_DOMAIN_LENGTH} characters"));
        }
        if !is_net_bios(domain) && !validate_dns1123_subdomain(&domain.to_lowercase()).is_empty() {
            wrong.push("runAsUserName's Domain doesn't match the NetBios nor the DNS format".to_owned());
        }
    }
    if user.is_empty() {
        wrong.push("runAsUserName's User cannot be empty".to_owned());
    } else if user.len() > MAX_USER_LENGTH {
        wrong.push(format!("runAsUserName's User length must not be longer than {MAX_USER_LENGTH} characters"));
    }
    if user.trim_matches(['.', ' ']).is_empty() {
        wrong.push("runAsUserName's User cannot contain only periods or spaces".to_owned());
    }
    if user.chars().any(|c| FORBIDDEN.contains(c)) {
        wrong.push(format!("runAsUserName's User cannot contain the following characters: {FORBIDDEN}"));
    }
    wrong
}

/// True for a NetBIOS name: one to fifteen characters without a leading dot.
fn is_net_bios(domain: &str) -> bool {
    const FORBIDDEN_IN_DOMAIN: &str = r#"\/:*?"<>|"#;
    !domain.starts_with('.')
        && (1..=15).contains(&domain.chars().count())
        && !domain.chars().any(|c| FORBIDDEN_IN_DOMAIN.contains(c))
}
