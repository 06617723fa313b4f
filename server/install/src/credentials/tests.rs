use rstest::rstest;

use super::*;

const LIST: &str = "
secrets:
- {kind: authority, name: ca, commonName: fleet}
- {kind: certificate, name: server, issuer: ca, commonName: api, usages: [server], names: [api.ns.svc, 127.0.0.1, '::1', '*.etcd']}
- {kind: certificate, name: client, issuer: ca, commonName: system:admin, organization: system:masters, usages: [client]}
- {kind: certificate, name: signer, issuer: ca, commonName: signer, usages: [client], keepKey: true}
- {kind: password, name: db, url: 'postgres://u:{password}@db/x'}
";

fn renewal(now: &str) -> Renewal {
    Renewal { now: now.parse().unwrap(), renew_before: SignedDuration::from_hours(120 * 24) }
}

fn required_secrets() -> Vec<RequiredSecret> {
    parse(LIST).unwrap()
}

/// Data of all Secrets as the first run creates them.
fn issue_all(required_secrets: &[RequiredSecret], now: Timestamp) -> BTreeMap<String, SecretData> {
    let mut all: BTreeMap<String, SecretData> = BTreeMap::new();
    for required in required_secrets {
        let issuer = issuer(required, &all);
        let data = issue::secret_data(required, None, issuer.as_ref(), now, &[7; 32]).unwrap();
        all.insert(required.name().to_owned(), data);
    }
    all
}

fn issuer(required: &RequiredSecret, all: &BTreeMap<String, SecretData>) -> Option<Credentials> {
    let RequiredSecret::Certificate(leaf) = required else { return None };
    Some(credentials(&leaf.issuer, &all[&leaf.issuer]).unwrap())
}

fn verdicts(required_secrets: &[RequiredSecret], all: &BTreeMap<String, SecretData>, renewal: Renewal) -> Vec<String> {
    let verdict = |required: &RequiredSecret| match evaluate(
        required,
        all.get(required.name()),
        issuer(required, all).as_ref(),
        renewal,
    ) {
        Ok(Verdict::Keep(_)) => "kept".to_owned(),
        Ok(Verdict::Create(reason)) => reason.to_string(),
        Err(error) => error.to_string(),
    };
    required_secrets.iter().map(verdict).collect()
}

#[test]
fn credentials_are_kept_until_they_are_due() {
    let required_secrets = required_secrets();
    let all = issue_all(&required_secrets, renewal("2026-11-01T12:00:00Z").now);
    assert_eq!(verdicts(&required_secrets, &all, renewal("2027-06-01T00:00:00Z")), ["kept"; 5]);
    let expires = "it expires at 2027-11-01T00:00:00Z";
    // CAs are not renewed automatically, and passwords do not expire.
    let expected = ["kept", expires, expires, expires, "kept"];
    assert_eq!(verdicts(&required_secrets, &all, renewal("2027-07-10T00:00:00Z")), expected);
}

#[test]
fn changed_credentials_are_created_again() {
    let now = renewal("2026-11-01T12:00:00Z");
    let all = issue_all(&required_secrets(), now.now);
    let changed =
        LIST.replace("api.ns.svc", "api.other.svc").replace("system:masters", "readers").replace("@db/x", "@other/x");
    let differs = "it does not match the list";
    assert_eq!(verdicts(&parse(&changed).unwrap(), &all, now), ["kept", differs, differs, "kept", differs]);

    // Another CA with the same name.
    let mut other = all.clone();
    other.insert("ca".to_owned(), issue_all(&required_secrets(), now.now)["ca"].clone());
    let other_issuer = "its issuer has changed";
    assert_eq!(verdicts(&required_secrets(), &other, now), ["kept", other_issuer, other_issuer, other_issuer, "kept"]);
}

#[test]
fn signing_keys_and_passwords_are_kept() {
    let now = renewal("2026-11-01T12:00:00Z").now;
    let required_secrets = required_secrets();
    let all = issue_all(&required_secrets, now);
    for required in &required_secrets[1..] {
        let stored = &all[required.name()];
        let reissued =
            issue::secret_data(required, Some(stored), issuer(required, &all).as_ref(), now, &[8; 32]).unwrap();
        let kept = |key: &str| reissued.get(key) == stored.get(key);
        let expected = match required {
            RequiredSecret::Password { .. } => kept(PASSWORD) && kept(URL),
            RequiredSecret::Certificate(leaf) => kept(KEY) == leaf.keep_key,
            RequiredSecret::Authority { .. } => false,
        };
        assert!(expected, "{}", required.name());
    }
}

#[test]
fn broken_secrets_are_replaced_except_authorities() {
    let now = renewal("2026-11-01T12:00:00Z");
    let required_secrets = required_secrets();
    let mut all = issue_all(&required_secrets, now.now);
    for stored in all.values_mut() {
        let is_primary_key = |key: &&String| [CERTIFICATE, PASSWORD].contains(&key.as_str());
        let key = stored.keys().find(is_primary_key).cloned().unwrap();
        stored.insert(key, ByteString(b"nonsense".to_vec()));
    }
    all.get_mut("db").unwrap().remove(PASSWORD);
    let verdict_of = |required: &RequiredSecret| {
        let issuer = Credentials { certificate: "x".to_owned(), key: "y".to_owned() };
        evaluate(required, all.get(required.name()), Some(&issuer), now).map_err(|error| error.to_string())
    };
    assert_eq!(
        verdict_of(&required_secrets[0]),
        Err("Secret ca is unusable and was not changed: its certificate is invalid".to_owned())
    );
    for required in &required_secrets[1..] {
        assert_eq!(verdict_of(required), Ok(Verdict::Create(IssueReason::Incomplete)), "{}", required.name());
    }
}

#[test]
fn passwords_are_in_the_url_and_not_printed() {
    let all = issue_all(&required_secrets(), renewal("2026-11-01T12:00:00Z").now);
    let password = text(&all["db"], PASSWORD).unwrap();
    assert_eq!(password.len(), 43);
    assert_eq!(text(&all["db"], URL), Some(format!("postgres://u:{password}@db/x").as_str()));
    let printed = format!("{:?}", credentials("client", &all["client"]).unwrap());
    assert!(printed.contains("BEGIN CERTIFICATE") && !printed.contains("PRIVATE"), "{printed}");
}

#[rstest]
#[case(
    "secrets: [{kind: certificate, name: a, issuer: ca, commonName: a, usages: [client]}]",
    "a: issuer: the list must contain the authority ca before this certificate"
)]
#[case("secrets: [{kind: authority, name: A, commonName: a}]", "A: a lowercase RFC 1123 subdomain must consist of")]
#[case(
    "secrets: [{kind: authority, name: a, commonName: a}, {kind: password, name: a, url: '{password}'}]",
    "a: the name is not unique in the list"
)]
#[case("secrets: [{kind: password, name: a, url: postgres://x}]", "a: url: must contain {password}")]
#[case(
    "secrets: [{kind: authority, name: ca, commonName: a}, {kind: certificate, name: a, issuer: ca, commonName: a, usages: []}]",
    "a: usages: must be client, server, or both"
)]
#[case("secrets: [{kind: token, name: a}]", "cannot parse the list of credentials")]
#[case(
    "secrets: [{kind: authority, name: ca, commonName: a}, {kind: certificate, name: a, issuer: ca, commonName: a, usages: [client], name: b}]",
    "cannot parse the list of credentials"
)]
fn invalid_lists_are_rejected(#[case] list: &str, #[case] expected: &str) {
    let error = parse(list).unwrap_err().to_string();
    assert!(error.starts_with(expected), "{error}");
}
