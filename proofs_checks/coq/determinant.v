(* Determinants of positive matrices: Hadamard's inequality, by Schur complements. *)
From mathcomp Require Import all_ssreflect all_algebra.
From Linattest Require Import forms.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Schur.
Variables (R : realFieldType) (d : nat) (a : R) (b : 'cV[R]_d) (C : 'M[R]_d).
Let N : 'M[R]_(1 + d) := block_mx a%:M b^T b C.
Definition schur := C - a^-1 *: (b *m b^T).
Hypothesis a0 : 0 < a.

Lemma schur_det : \det N = a * \det schur.
Proof.
pose L : 'M[R]_(1 + d) := block_mx 1%:M 0 (- (a^-1 *: b)) 1%:M.
have product : L *m N = block_mx a%:M b^T 0 schur.
  rewrite /L /N mulmx_block !mul1mx !mul0mx !addr0 !mulNmx mul_mx_scalar scalerA divff ?gt_eqF //.
  by rewrite scale1r addNr -scalemxAl addrC.
have := congr1 determinant product.
by rewrite det_mulmx det_lblock !det1 mulr1 mul1r det_ublock det_scalar1.
Qed.

Lemma schur_form x : form schur x x = form N (col_mx (- (a^-1 * dot b x))%:M x) (col_mx (- (a^-1 * dot b x))%:M x).
Proof.
rewrite [in RHS]/form -mulmxA /N mul_block_col (dotE b) -scalar_mxM -raddfD /=.
rewrite mulrN mulVKf ?gt_eqF // addNr raddf0 tr_col_mx mul_row_col mulmx0 add0r.
rewrite mul_mx_scalar /form -mulmxA; congr ((_ *m _) 0 0).
rewrite /schur mulmxBl -scalemxAl -mulmxA dotE mul_mx_scalar scalerA addrC scaleNr //.
Qed.

Lemma schur_pd : pd N -> pd schur.
Proof.
move=> h x nz; rewrite schur_form h //; apply: contra nz => /eqP e.
by have := congr1 (@dsubmx _ 1 d 1) e; rewrite col_mxKd linear0 => ->.
Qed.

Lemma schur_symmetric : symmetric C -> symmetric schur.
Proof. by move=> h; rewrite /symmetric /schur linearB /= linearZ /= trmx_mul trmxK h. Qed.

Lemma schur_diagonal i : schur i i <= C i i.
Proof. by rewrite !mxE big_ord1 !mxE ger_addl oppr_le0 mulr_ge0 ?invr_ge0 ?(ltW a0) // -expr2 sqr_ge0. Qed.
End Schur.

Lemma diagonal_form (R : realFieldType) d (N : 'M[R]_d) i : form N (delta_mx i 0) (delta_mx i 0) = N i i.
Proof. by rewrite /form trmx_delta -rowE -colE !mxE. Qed.

Lemma diagonal_gt0 (R : realFieldType) d (N : 'M[R]_d) i : pd N -> 0 < N i i.
Proof.
move=> h; rewrite -diagonal_form h //; apply/eqP => /matrixP /(_ i 0) /eqP.
by rewrite !mxE !eqxx oner_eq0.
Qed.

(* Hadamard: the determinant of a positive definite matrix is at most the product of its diagonal. *)
Theorem hadamard (R : realFieldType) d (N : 'M[R]_d) :
  symmetric N -> pd N -> 0 < \det N <= \prod_i N i i.
Proof.
elim: d N => [|d IH] N symN posN; first by rewrite det_mx00 big_ord0 ltr01 lexx.
pose a := N 0 0; pose b : 'cV_d := @dlsubmx _ 1 d 1 d N; pose C := @drsubmx _ 1 d 1 d N.
have a0 : 0 < a by exact: diagonal_gt0.
have e : N = @block_mx _ 1 d 1 d a%:M b^T b C.
  rewrite -[LHS](@submxK _ 1 d 1 d); congr (@block_mx _ 1 d 1 d _ _ _ _).
    by rewrite [ulsubmx _]mx11_scalar !mxE !lshift0.
  by rewrite /b trmx_dlsub symN.
have posB : pd (@block_mx _ 1 d 1 d a%:M b^T b C) by rewrite -e.
have symC : symmetric C by rewrite /symmetric /C trmx_drsub symN.
have posS := schur_pd a0 posB.
have /andP [det0 bound] := IH _ (schur_symmetric a b symC) posS.
rewrite {1 2}e (schur_det b C a0) mulr_gt0 //= big_ord_recl ler_pmul2l //.
apply: le_trans bound _; apply: ler_prod => i _; rewrite ltW ?diagonal_gt0 //=.
by apply: le_trans (schur_diagonal b C a0 i) _; rewrite !mxE !rshift1.
Qed.

(* det(I + X) <= prod (1 + X_ii) for positive semidefinite X *)
Theorem det_one_plus (R : realFieldType) d (X : 'M[R]_d) :
  symmetric X -> psd X -> \det (1%:M + X) <= \prod_i (1 + X i i).
Proof.
move=> symX psdX.
have /andP [_] := hadamard (symmetric_add (trmx1 _ _) symX) (pd_add (pd_scalar ltr01) psdX).
have -> // : \prod_i (1%:M + X) i i = \prod_i (1 + X i i).
by apply: eq_bigr => i _; rewrite !mxE eqxx mulr1n.
Qed.

(* Twin: Hadamard's inequality is strict. *)
Theorem twin_hadamard : forall R : realFieldType, ~ (forall d (N : 'M[R]_d),
  symmetric N -> pd N -> 0 < \det N < \prod_i N i i).
Proof.
move=> R /(_ 1%N 1%:M (one_symmetric _) (one_pd ltr01)).
by rewrite det1 big_ord1 mxE eqxx mulr1n ltxx andbF.
Qed.

(* Twin: det(I + X) <= 1 + tr X. *)
Theorem twin_det_one_plus : forall R : realFieldType, ~ (forall d (X : 'M[R]_d),
  symmetric X -> psd X -> \det (1%:M + X) <= 1 + \tr X).
Proof.
move=> R /(_ 2%N 1%:M (trmx1 _ _) (pd_psd (pd_scalar ltr01))).
by rewrite -raddfD det_scalar mxtrace1 -mulr2n -natrX -(natrD _ 1) ler_nat.
Qed.
