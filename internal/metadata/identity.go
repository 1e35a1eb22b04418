package metadata

import (
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"time"
)

// identity is EC2's instance identity document; the null members are always null here, and there for those who look.
type identity struct {
	AccountID               string   `json:"accountId"`
	Architecture            string   `json:"architecture"`
	AvailabilityZone        string   `json:"availabilityZone"`
	BillingProducts         []string `json:"billingProducts"`
	DevpayProductCodes      []string `json:"devpayProductCodes"`
	MarketplaceProductCodes []string `json:"marketplaceProductCodes"`
	ImageID                 string   `json:"imageId"`
	InstanceID              string   `json:"instanceId"`
	InstanceType            string   `json:"instanceType"`
	KernelID                *string  `json:"kernelId"`
	PendingTime             string   `json:"pendingTime"`
	PrivateIP               string   `json:"privateIp"`
	RamdiskID               *string  `json:"ramdiskId"`
	Region                  string   `json:"region"`
	Version                 string   `json:"version"`
}

// identityDocument is the document's exact bytes: what is signed is what is served.
func identityDocument(i *Instance) string {
	d := identity{
		AccountID:        i.ProjectID,
		Architecture:     i.Architecture,
		AvailabilityZone: i.Zone,
		ImageID:          i.ImageID,
		InstanceID:       i.ID,
		InstanceType:     i.Type,
		PendingTime:      i.LaunchedAt.UTC().Format(time.RFC3339),
		Region:           i.Region,
		Version:          "2017-09-30",
	}
	if d.Architecture == "amd64" {
		d.Architecture = "x86_64"
	}
	if len(i.Interfaces) > 0 {
		d.PrivateIP = i.Interfaces[0].Address.String()
	}
	b, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		panic(err) // strings only
	}
	return string(b)
}

// signDocument is base64 of the signature over the document's SHA-256; with an RSA key it is PKCS #1 v1.5, what EC2
// serves as "signature". Empty when the key fails.
func signDocument(signer crypto.Signer, document string) string {
	sum := sha256.Sum256([]byte(document))
	sig, err := signer.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		return ""
	}
	return base64.StdEncoding.EncodeToString(sig)
}
