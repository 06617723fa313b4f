package main

import (
	"encoding/json"
	"os"
)

// access is the address of a cluster and the credentials of one of its users.
type access struct {
	name      string
	server    string
	authority []byte
	client    keyPair
}

// kubeconfig is a client's configuration. It is written as JSON, which is also YAML and encodes byte slices in base64, as required.
type kubeconfig struct {
	APIVersion     string         `json:"apiVersion"`
	Kind           string         `json:"kind"`
	CurrentContext string         `json:"current-context"`
	Clusters       []namedCluster `json:"clusters"`
	Contexts       []namedContext `json:"contexts"`
	Users          []namedUser    `json:"users"`
}

type namedCluster struct {
	Name    string `json:"name"`
	Cluster struct {
		Server    string `json:"server"`
		Authority []byte `json:"certificate-authority-data"`
	} `json:"cluster"`
}

type namedContext struct {
	Name    string `json:"name"`
	Context struct {
		Cluster string `json:"cluster"`
		User    string `json:"user"`
	} `json:"context"`
}

type namedUser struct {
	Name string `json:"name"`
	User struct {
		Certificate []byte `json:"client-certificate-data"`
		Key         []byte `json:"client-key-data"`
	} `json:"user"`
}

// newKubeconfig returns a kubeconfig with a context for each cluster, named like the cluster; the first one is current.
func newKubeconfig(clusters ...access) kubeconfig {
	config := kubeconfig{APIVersion: "v1", Kind: "Config", CurrentContext: clusters[0].name}
	for _, a := range clusters {
		cluster, context, user := namedCluster{Name: a.name}, namedContext{Name: a.name}, namedUser{Name: a.name}
		cluster.Cluster.Server, cluster.Cluster.Authority = a.server, a.authority
		context.Context.Cluster, context.Context.User = a.name, a.name
		user.User.Certificate, user.User.Key = a.client.certificate, a.client.key
		config.Clusters = append(config.Clusters, cluster)
		config.Contexts = append(config.Contexts, context)
		config.Users = append(config.Users, user)
	}
	return config
}

func (k kubeconfig) write(path string) error {
	text, err := json.MarshalIndent(k, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o600)
}
