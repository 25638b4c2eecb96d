// Package verify holds the tests of what is in deploy/ and of docker-compose.yml: with the libraries of Compose,
// Kustomize, Kubernetes and Prometheus themselves, which is why it is a module of its own. The program needs none of them.
package verify
