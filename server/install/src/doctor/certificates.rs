//! Checks certificates: validity period, names, and whether the control plane trusts them. Has no side effects.

use std::sync::Arc;
use std::time::Duration;

use crowsnest_component_base::tls;
use jiff::{SignedDuration, Timestamp};
use rustls::CertificateError;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::checks::Finding;
use super::tls_chains::Chain;

/// Remaining lifetime below which a certificate is reported; a fifth of its total lifetime if that is shorter.
const EXPIRY_WARNING: SignedDuration = SignedDuration::from_hours(30 * 24);
const SERVING: &str = "certificate of serve";

/// The certificate chains that `serve` presents, and the CAs that must have issued them.
pub(super) struct PresentedCertificates<'a> {
    pub(super) address: &'a str,
    /// Chains by requested server name, or the error of the connection.
    pub(super) chains: &'a [(&'a str, Result<Chain, String>)],
    /// The CAs that the control plane trusts.
    pub(super) authorities: &'a [CertificateDer<'static>],
    /// True if `install` created the certificate.
    pub(super) is_issued_by_install: bool,
}

/// A problem of a certificate.
#[derive(Debug, PartialEq, Eq)]
enum CertificateProblem {
    Unreadable,
    NotYetValid(Timestamp),
    Expired(Timestamp),
    ExpiresSoon(Timestamp),
    NameMismatch(String),
    /// The reason why the control plane does not trust it.
    Untrusted(String),
    AuthorityExpired(Timestamp),
}

impl std::fmt::Display for CertificateProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreadable => f.write_str("it is invalid"),
            Self::NotYetValid(from) => write!(f, "it is not valid before {from}"),
            Self::Expired(at) => write!(f, "it expired at {at}"),
            Self::ExpiresSoon(at) => write!(f, "it expires at {at}"),
            Self::NameMismatch(name) => write!(f, "it is not valid for {name}"),
            Self::Untrusted(reason) => write!(f, "the control plane does not trust it: {reason}"),
            Self::AuthorityExpired(at) => write!(f, "the CA that the control plane trusts expired at {at}"),
        }
    }
}

/// Checks the certificates as the control plane sees them when it calls `serve`.
pub(super) fn check_serving(presented: &PresentedCertificates<'_>, now: Timestamp) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for (name, chain) in presented.chains {
        let finding = match chain {
            Ok(chain) => match check_chain(chain, Some((name, presented.authorities)), now) {
                Ok(until) => Finding::good(SERVING, format!("valid until {until}")),
                Err(problem) => finding_for(SERVING, &problem, &fix_for(&problem, presented.is_issued_by_install)),
            },
            Err(error) => Finding::warning(
                SERVING,
                format!("cannot read the certificate at {} from this machine: {error}", presented.address),
                "check that `crowsnest serve` runs with the role aggregated or webhook; if only the control plane can reach it, run doctor there",
            ),
        };
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    findings
}

/// Checks the client certificate of the kubeconfig.
pub(super) fn check_client_certificate(chain: &[CertificateDer<'static>], now: Timestamp) -> Finding {
    let subject = "client certificate of this kubeconfig";
    let fix = "have its issuer renew it; `crowsnest serve` reloads the kubeconfig";
    match check_chain(chain, None, now) {
        Ok(until) => Finding::good(subject, format!("valid until {until}")),
        Err(problem) => finding_for(subject, &problem, fix),
    }
}

/// The finding for a problem: a warning if the certificate expires soon, otherwise broken.
fn finding_for(subject: &str, problem: &CertificateProblem, fix: &str) -> Finding {
    match problem {
        CertificateProblem::ExpiresSoon(_) => Finding::warning(subject, problem.to_string(), fix),
        _ => Finding::broken(subject, problem.to_string(), fix),
    }
}

/// The action that solves a problem. `is_issued_by_install` is true if `install` created the certificate.
fn fix_for(problem: &CertificateProblem, is_issued_by_install: bool) -> String {
    let fix = match (problem, is_issued_by_install) {
        (CertificateProblem::NotYetValid(_), _) => "synchronize the clocks of all machines (NTP)",
        (CertificateProblem::AuthorityExpired(_), true) => {
            "delete Secret karmada-system/crowsnest-serving and run `crowsnest install`, which creates another CA"
        }
        (_, true) => {
            "run `crowsnest install`, which creates another, and run `crowsnest serve` without --tls-cert-file"
        }
        (CertificateProblem::NameMismatch(name), false) => return format!("have its issuer add the name {name}"),
        (CertificateProblem::Untrusted(_), false) => {
            "run `crowsnest install --ca-file` with the CA that signed it, or use a certificate of the installed CA"
        }
        (CertificateProblem::AuthorityExpired(_), false) => {
            "run `crowsnest install --ca-file` with another CA, and use a certificate that it issued"
        }
        (_, false) => "have its issuer renew it (in the chart, the CronJob or cert-manager); `serve` reloads it",
    };
    fix.to_owned()
}

/// Checks a chain for clients that request this name and trust these CAs. Returns the time at which it expires.
fn check_chain(
    chain: &[CertificateDer<'static>],
    expected: Option<(&str, &[CertificateDer<'static>])>,
    now: Timestamp,
) -> Result<Timestamp, CertificateProblem> {
    let validities = chain.iter().map(validity).collect::<Option<Vec<_>>>().ok_or(CertificateProblem::Unreadable)?;
    let leaf = chain.first().ok_or(CertificateProblem::Unreadable)?;
    // A chain expires with the first of its certificates.
    let (from, until) = validities.into_iter().min_by_key(|(_, until)| *until).ok_or(CertificateProblem::Unreadable)?;
    if until <= now {
        return Err(CertificateProblem::Expired(until));
    }
    if from > now {
        return Err(CertificateProblem::NotYetValid(from));
    }
    if let Some((name, authorities)) = expected {
        verify(leaf, &chain[1..], name, authorities, now)?;
        // Rustls uses only the keys of trusted CAs; kube-apiserver checks their validity period too.
        let latest_expiry = authorities.iter().filter_map(validity).map(|(_, until)| until).max();
        if let Some(expiry) = latest_expiry.filter(|expiry| *expiry <= now) {
            return Err(CertificateProblem::AuthorityExpired(expiry));
        }
    }
    match until.duration_since(now) < EXPIRY_WARNING.min(until.duration_since(from) / 5) {
        true => Err(CertificateProblem::ExpiresSoon(until)),
        false => Ok(until),
    }
}

/// Verifies the name and the signatures of a chain as a TLS client does.
fn verify(
    leaf: &CertificateDer<'static>,
    intermediates: &[CertificateDer<'static>],
    name: &str,
    authorities: &[CertificateDer<'static>],
    now: Timestamp,
) -> Result<(), CertificateProblem> {
    let untrusted = |reason: &dyn std::fmt::Display| CertificateProblem::Untrusted(reason.to_string());
    let name_mismatch = || CertificateProblem::NameMismatch(name.to_owned());
    let server_name = ServerName::try_from(name).map_err(|_| name_mismatch())?;
    let verifier = tls::bundle_verifier(authorities.to_vec(), Arc::new(rustls::crypto::ring::default_provider()));
    let verifier = verifier.map_err(|_| untrusted(&"no CA is registered"))?;
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().try_into().unwrap_or_default()));
    match verifier.verify_server_cert(leaf, intermediates, &server_name, &[], now) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => Err(name_mismatch()),
        // A signature is invalid if another CA with the same name issued the certificate.
        Err(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            Err(untrusted(&"it was signed by another CA"))
        }
        Err(error) => Err(untrusted(&error)),
    }
}

/// The validity period of a certificate.
fn validity(der: &CertificateDer<'static>) -> Option<(Timestamp, Timestamp)> {
    let (_, parsed) = X509Certificate::from_der(der).ok()?;
    let at = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
    at(parsed.validity().not_before).zip(at(parsed.validity().not_after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::checks::Severity;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd};
    use rstest::rstest;

    /// A CA that is valid until this year; leaf certificates are valid in 2026.
    fn authority(until: i32) -> (CertificateDer<'static>, Issuer<'static, KeyPair>) {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(until, 1, 1));
        let key = KeyPair::generate().unwrap();
        let der = params.self_signed(&key).unwrap().der().clone();
        (der, Issuer::new(params, key))
    }

    fn leaf(issuer: Option<&Issuer<'static, KeyPair>>) -> CertificateDer<'static> {
        let names = ["fleet.example.com", "10.0.0.7"].map(str::to_owned);
        let mut params = CertificateParams::new(names).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2027, 1, 1));
        let key = KeyPair::generate().unwrap();
        let signed = match issuer {
            Some(issuer) => params.signed_by(&key, issuer),
            None => params.self_signed(&key),
        };
        signed.unwrap().der().clone()
    }

    /// The CAs that the control plane trusts in a test.
    #[derive(Debug, Clone, Copy)]
    enum TrustedCa {
        Issuer,
        IssuerValidUntil(i32),
        OtherCa,
        SelfSigned,
        None,
    }

    #[rstest]
    #[case::valid("2026-06-01", "fleet.example.com", TrustedCa::Issuer, "valid until 2027-01-01T00:00:00Z")]
    #[case::ip_address("2026-06-01", "10.0.0.7", TrustedCa::Issuer, "valid until")]
    #[case::self_signed("2026-06-01", "10.0.0.7", TrustedCa::SelfSigned, "valid until")]
    #[case("2026-12-15", "10.0.0.7", TrustedCa::Issuer, "it expires at 2027-01-01T00:00:00Z")]
    #[case("2027-01-01", "10.0.0.7", TrustedCa::Issuer, "it expired at 2027-01-01T00:00:00Z")]
    #[case("2025-12-31", "10.0.0.7", TrustedCa::Issuer, "it is not valid before 2026-01-01T00:00:00Z")]
    #[case("2026-06-01", "10.0.0.8", TrustedCa::Issuer, "it is not valid for 10.0.0.8")]
    #[case("2026-06-01", "b.example.com", TrustedCa::SelfSigned, "it is not valid for b.example.com")]
    #[case(
        "2026-06-01",
        "10.0.0.7",
        TrustedCa::OtherCa,
        "the control plane does not trust it: it was signed by another CA"
    )]
    #[case("2026-06-01", "10.0.0.7", TrustedCa::None, "the control plane does not trust it: no CA is registered")]
    #[case(
        "2026-06-01",
        "10.0.0.7",
        TrustedCa::IssuerValidUntil(2026),
        "the CA that the control plane trusts expired at 2026-01-01"
    )]
    fn serving_certificates_are_checked(
        #[case] today: jiff::civil::Date,
        #[case] name: &str,
        #[case] trusted: TrustedCa,
        #[case] expected: &str,
    ) {
        let now = today.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp();
        let until = if let TrustedCa::IssuerValidUntil(year) = trusted { year } else { 2030 };
        let (ca, issuer) = authority(until);
        let chain = vec![leaf((!matches!(trusted, TrustedCa::SelfSigned)).then_some(&issuer))];
        let authorities = match trusted {
            TrustedCa::Issuer | TrustedCa::IssuerValidUntil(_) => vec![authority(2031).0, ca],
            TrustedCa::OtherCa => vec![authority(2031).0],
            TrustedCa::SelfSigned => chain.clone(),
            TrustedCa::None => Vec::new(),
        };
        // An expired CA from before a rotation must not be reported.
        let authorities = if until < 2030 { authorities[1..].to_vec() } else { authorities };
        let chains = [(name, Ok(chain))];
        for is_issued_by_install in [true, false] {
            let found = check_serving(
                &PresentedCertificates {
                    address: "h:8443",
                    chains: &chains,
                    authorities: &authorities,
                    is_issued_by_install,
                },
                now,
            );
            let [found] = found.as_slice() else { panic!("{found:?}") };
            assert!(found.observation.starts_with(expected), "{found:?}");
            assert_eq!(found.fix.is_empty(), found.severity == Severity::Good, "{found:?}");
            assert_eq!(found.severity == Severity::Warning, expected.starts_with("it expires"), "{found:?}");
            assert_eq!(
                found.fix.contains("run `crowsnest install`"),
                is_issued_by_install && found.fix.contains("which creates"),
                "{found:?}"
            );
        }
    }

    #[test]
    fn findings_are_reported_once() {
        let now: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
        let (ca, issuer) = authority(2030);
        let chain = vec![leaf(Some(&issuer))];
        let findings_of = |chains: &[(&str, Result<Chain, String>)]| {
            let presented = PresentedCertificates {
                address: "h:8443",
                chains,
                authorities: std::slice::from_ref(&ca),
                is_issued_by_install: false,
            };
            check_serving(&presented, now)
                .into_iter()
                .map(|found| (found.severity, found.observation))
                .collect::<Vec<_>>()
        };
        let good = (Severity::Good, "valid until 2027-01-01T00:00:00Z".to_owned());
        let matching_chains = [("10.0.0.7", Ok(chain.clone())), ("fleet.example.com", Ok(chain.clone()))];
        assert_eq!(findings_of(&matching_chains), std::slice::from_ref(&good));
        let mixed_chains = [("10.0.0.7", Ok(chain.clone())), ("b", Ok(chain))];
        assert_eq!(findings_of(&mixed_chains), [good, (Severity::Broken, "it is not valid for b".to_owned())]);
        let unreachable = [("a", Err("connection refused".to_owned())), ("b", Err("connection refused".to_owned()))];
        let expected = "cannot read the certificate at h:8443 from this machine: connection refused";
        assert_eq!(findings_of(&unreachable), [(Severity::Warning, expected.to_owned())]);
    }

    #[rstest]
    #[case("2026-06-01T00:00:00Z", Severity::Good, "valid until 2027-01-01T00:00:00Z")]
    #[case("2026-12-15T00:00:00Z", Severity::Warning, "it expires at 2027-01-01T00:00:00Z")]
    #[case("2027-02-01T00:00:00Z", Severity::Broken, "it expired at 2027-01-01T00:00:00Z")]
    fn client_certificate_is_checked(#[case] now: Timestamp, #[case] severity: Severity, #[case] expected: &str) {
        let found = check_client_certificate(&[leaf(None)], now);
        assert_eq!((found.severity, found.observation.as_str()), (severity, expected));
        assert_eq!(!found.fix.is_empty(), severity != Severity::Good);
    }
}
