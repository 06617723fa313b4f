package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"time"
)

// validity of certificates. Fleets live for minutes or days.
const validity = 30 * 24 * time.Hour

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         keyPair
}

// keyPair is a certificate and its private key, in PEM.
type keyPair struct {
	certificate, key []byte
}

// subject describes the holder of a certificate. A certificate with hosts is valid for servers and clients, one without only for clients.
type subject struct {
	user  string
	group string
	hosts []string
}

func newAuthority(name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := certificateTemplate(subject{user: name})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = nil
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	pair, err := encode(der, key)
	return &authority{certificate: certificate, key: key, pem: pair}, err
}

func (a *authority) sign(s subject) (keyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, certificateTemplate(s), a.certificate, key.Public(), a.key)
	if err != nil {
		return keyPair{}, err
	}
	return encode(der, key)
}

func certificateTemplate(s subject) *x509.Certificate {
	// 127 bits: serial numbers are positive and unique.
	serial := new(big.Int).SetBytes(randomBytes(16))
	serial.Rsh(serial, 1)
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: s.user},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if s.group != "" {
		template.Subject.Organization = []string{s.group}
	}
	for _, host := range s.hosts {
		if address := net.ParseIP(host); address != nil {
			template.IPAddresses = append(template.IPAddresses, address)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	if len(s.hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	return template
}

func randomBytes(count int) []byte {
	bytes := make([]byte, count)
	// crypto/rand.Read never returns an error; it terminates the program instead.
	_, _ = rand.Read(bytes)
	return bytes
}

func encode(der []byte, key *ecdsa.PrivateKey) (keyPair, error) {
	private, err := x509.MarshalECPrivateKey(key)
	return keyPair{
		certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		key:         pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}),
	}, err
}

// write stores the pair as PATH.crt and PATH.key.
func (p keyPair) write(path string) error {
	if err := os.WriteFile(path+".crt", p.certificate, 0o644); err != nil {
		return err
	}
	return os.WriteFile(path+".key", p.key, 0o600)
}
