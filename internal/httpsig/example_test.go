package httpsig_test

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/httpsig"
)

// A runner signs a heartbeat and a gateway verifies it.
func Example() {
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	now := func() time.Time { return time.Unix(1_700_000_000, 0) }
	const body = `{"host":"builder-01"}`

	r, _ := http.NewRequest("POST", "https://gateway.example/v1/hosts/heartbeat", strings.NewReader(body))
	signer := &httpsig.Signer{Profile: httpsig.Runner, Key: key, KeyID: "key-1", Now: now}
	if err := signer.SignRequest(r, []byte(body)); err != nil {
		fmt.Println(err)
	}

	policy := &httpsig.Policy{Profile: httpsig.Runner, Skew: 5 * time.Minute, Now: now}
	keys := func(keyid string) (ed25519.PublicKey, error) {
		if keyid != "key-1" {
			return nil, nil
		}
		return key.Public().(ed25519.PublicKey), nil
	}
	result, err := policy.Verify(httpsig.FromRequest(r), []byte(body), keys)
	fmt.Println(result.KeyID, result.KeepUntil.Sub(now()), err)

	_, err = policy.Verify(httpsig.FromRequest(r), []byte("another body"), keys)
	fmt.Println(errors.Is(err, httpsig.ErrInvalid))
	// Output:
	// key-1 5m1s <nil>
	// true
}
